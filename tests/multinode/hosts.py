"""Hosts for tests: network namespaces of this machine, joined by a switch, each with its own sshd. They are removed at the end of the
`with`,
also after errors. Names contain this process's id, so that several tests can run at a time.
"""
import getpass
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

PORT = 2222
NETWORK = "192.0.2"  # for documentation (RFC 5737); it exists only inside the namespaces


def why_not():
    """Returns the reason why hosts are not possible here, or None."""
    for program in ("ip", "ssh", "ssh-keygen"):
        if not shutil.which(program):
            return f"{program} is not installed"
    if not shutil.which("sshd", path="/usr/sbin:/usr/bin"):
        return "sshd is not installed"
    if os.geteuid():
        return "network namespaces and sshd need root"
    try:
        with Hosts(0) as hosts:
            hosts.ip("-n", hosts.switch, "link", "add", "bridge", "type", "bridge")
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not allowed: {error.stderr.strip()}"
    return None


class Made:
    """Base class: everything that make() creates lasts as long as a `with`, and is removed after an error inside make()."""

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self


class Hosts(Made):
    """Hosts node-a, node-b, ...: `names`. `ssh_options` are the ssh options to reach them."""

    def __init__(self, count):
        self.names = [f"node-{chr(ord('a') + n)}" for n in range(count)]
        self.switch = f"cleave-{os.getpid()}-switch"
        self.sshds = {}  # by host
        self.servers = []  # process ids of the hosts' servers

    def ip(self, *args):
        return subprocess.run(["ip", *args], check=True, capture_output=True, text=True, timeout=20).stdout

    def space(self, name):
        return f"cleave-{os.getpid()}-{name}"

    def address(self, name):
        return f"{NETWORK}.{self.names.index(name) + 1}"

    def inside(self, name, *command):
        return ["ip", "netns", "exec", self.space(name), *map(str, command)]

    def named(self, name, *command):
        """Returns a command that runs inside a host, with its name and those of the others."""
        prelude = f'hostname {name} && mount --bind {self.folder}/hosts /etc/hosts && exec "$@"'
        return self.inside(name, "unshare", "--uts", "sh", "-c", prelude, "sh", *command)

    def make(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="cleave-hosts-"))
        self.ip("netns", "add", self.switch)
        if not self.names:
            return
        self.ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        self.ip("-n", self.switch, "link", "set", "bridge", "up")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "key"], check=True)
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{self.address(name)} {name}\n" for name in self.names))
        client = ""
        for name in self.names:
            space, address = self.space(name), self.address(name)
            self.ip("netns", "add", space)
            self.ip("link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", name, "netns", self.switch)
            self.ip("-n", self.switch, "link", "set", name, "master", "bridge", "up")
            self.ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
            self.ip("-n", space, "link", "set", "eth0", "up")
            self.ip("-n", space, "link", "set", "lo", "up")
            self.serve(name, address)
            client += f"Host {name}\n  HostName {address}\n"
        self.ssh_config = self.folder / "ssh_config"
        self.ssh_config.write_text(f"{client}Host *\n  Port {PORT}\n  User {getpass.getuser()}\n  IdentityFile {self.folder}/key\n"
                                   f"  IdentitiesOnly yes\n  UserKnownHostsFile {self.folder}/known\n  GlobalKnownHostsFile none\n"
                                   "  StrictHostKeyChecking accept-new\n  HashKnownHosts no\n")
        self.ssh_options = f"-F {self.ssh_config}"

    def serve(self, name, address):
        key, config = self.folder / f"{name}.key", self.folder / f"{name}.sshd"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        config.write_text(f"ListenAddress {address}:{PORT}\nHostKey {key}\nPidFile none\nUsePAM no\nStrictModes no\n"
                          f"AuthorizedKeysFile {self.folder}/key.pub\nPasswordAuthentication no\nPermitRootLogin yes\nAcceptEnv LC_*\n"
                          f"MaxStartups 100\nSetEnv HOME={self.folder}\n")  # its shell reads no files of this machine's user
        os.makedirs("/run/sshd", exist_ok=True)
        self.start_server(name)

    def start_server(self, name):
        config, log = self.folder / f"{name}.sshd", self.folder / f"{name}.log"
        log.unlink(missing_ok=True)
        server = shutil.which("sshd", path="/usr/sbin:/usr/bin")
        sshd = subprocess.Popen(self.named(name, server, "-D", "-f", config, "-E", log), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                start_new_session=True)
        self.sshds[name] = sshd
        self.servers.append(sshd.pid)
        until = time.monotonic() + 10
        while not (log.exists() and "Server listening" in log.read_text()):
            if time.monotonic() > until or sshd.poll() is not None:
                raise RuntimeError(f"sshd did not start: {log.read_text() if log.exists() else ''}")
            time.sleep(0.01)

    def stop_server(self, name):
        sshd = self.sshds.pop(name)
        sshd.kill()
        sshd.wait()
        self.servers.remove(sshd.pid)

    def processes(self, name):
        """Returns the processes on a host, except its servers: id -> command line."""
        found = {}
        for pid in map(int, self.ip("netns", "pids", self.space(name)).split()):
            try:
                state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                if pid not in self.servers and state not in "ZX":
                    found[pid] = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:
                pass  # it ended meanwhile
        return found

    def pull_cable(self, name):
        self.ip("-n", self.switch, "link", "set", name, "down")

    def plug_cable(self, name):
        self.ip("-n", self.switch, "link", "set", name, "up")

    def kill_all(self, name):
        """Kills the remaining processes of a job on a host."""
        for pid in self.processes(name):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def __exit__(self, *_):
        for name in list(self.sshds):
            self.stop_server(name)
        existing = {line.split()[0] for line in self.ip("netns", "list").splitlines() if line}
        for name in self.names:
            if self.space(name) in existing:
                self.kill_all(name)
        for space in [self.space(name) for name in self.names] + [self.switch]:
            if space in existing:
                self.ip("netns", "delete", space)  # also deletes its end of the cable
        shutil.rmtree(self.folder, ignore_errors=True)

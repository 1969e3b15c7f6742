"""SLURM on the hosts of hosts.py: Debian's slurmctld on the first, a slurmd on each, and a separate munged. All files are in the hosts'
temporary folder; the machine's own SLURM, its configuration and services are not used.
"""
import ctypes
import os
import shutil
import signal
import subprocess
import time

from hosts import Made

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc", "scancel", "scontrol", "unshare")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
# KillWait is the time from SIGTERM to SIGKILL, in seconds.
CONFIG = """ClusterName=cleave
SlurmctldHost={controller}({address})
SlurmctldPort=6817
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
PlugStackConfig={folder}/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
MailProg=/bin/true
MpiDefault=none
KillWait=2
"""


def why_not():
    missing = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
    return f"{', '.join(missing)} not installed" if missing else None


def has_pmix():
    try:
        ctypes.CDLL("libpmix.so.2")
    except OSError:
        return False
    return True


class Slurm(Made):
    """`environment` has the variables for SLURM's commands, which run in `hosts.named(...)`."""

    def __init__(self, hosts, slots):
        self.hosts, self.slots = hosts, slots
        self.folder = hosts.folder / "slurm"
        self.daemons = []
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def make(self):
        for folder in [self.folder, self.folder / "state"] + [self.folder / f"{kind}-{name}" for kind in ("spool", "tmp") for name in self.hosts.names]:
            folder.mkdir()
        (self.folder / "none").touch()
        first = self.hosts.names[0]
        config = CONFIG.format(folder=self.folder, controller=first, address=self.hosts.address(first))
        for name in self.hosts.names:
            config += f"NodeName={name} NodeAddr={self.hosts.address(name)} Port=6818 CPUs={self.slots} State=UNKNOWN\n"
        (self.folder / "slurm.conf").write_text(config + "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n")
        # Older versions cannot disable control groups, and fail without them.
        (self.folder / "cgroup.conf").write_text(f"CgroupPlugin={'cgroup/v1' if self.version() < (23, 2) else 'disabled'}\n")
        self.start_munged()
        self.start(first, "slurmctld", "-D", "-i")
        for name in self.hosts.names:
            self.start(name, "slurmd", "-D", "-N", name)
        self.wait_until_idle()

        for name in self.hosts.names:
            self.hosts.servers += self.hosts.processes(name)  # including their children

    def version(self):
        said = subprocess.run([shutil.which("slurmctld", path=PATH), "-V"], capture_output=True, text=True).stdout
        return tuple(int(n) for n in said.split()[1].split(".")[:2])

    def start_munged(self):
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        # --force: the folder may be in /tmp, which others can write to. -F: in the foreground, so that this process can end it.
        command = [shutil.which("munged", path=PATH), "--force", "-F", "--key-file", key, "--num-threads", "2"]
        for what in ("socket", "log-file", "pid-file", "seed-file"):
            command += [f"--{what}", self.folder / f"munge.{what.split('-')[0]}"]
        self.daemons.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                             start_new_session=True))
        self.wait_for(lambda: (self.folder / "munge.socket").exists(), "munged")

    def start(self, name, program, *args):
        with open(self.folder / f"{program}-{name}.out", "wb") as out:
            self.daemons.append(subprocess.Popen(self.hosts.named(name, shutil.which(program, path=PATH), *args), stdin=subprocess.DEVNULL,
                                                 stdout=out, stderr=out, env={**os.environ, **self.environment}, start_new_session=True))
        self.hosts.servers.append(self.daemons[-1].pid)

    def run(self, *command):
        """Runs a SLURM command on the first host."""
        return subprocess.run(self.hosts.named(self.hosts.names[0], *command), env={**os.environ, **self.environment}, capture_output=True,
                              text=True, timeout=30)

    def wait_until_idle(self):
        names = [f"{name} idle" for name in self.hosts.names]
        self.wait_for(lambda: self.run("sinfo", "-h", "-N", "-o", "%N %T").stdout.split("\n")[:-1] == names, "SLURM")

    def wait_for(self, done, what):
        until = time.monotonic() + 30
        while not done():
            if time.monotonic() > until or any(d.poll() is not None for d in self.daemons):
                raise RuntimeError(f"{what} did not start:\n{self.logs()}")
            time.sleep(0.05)

    def logs(self):
        return "".join(f"{file.name}:\n{file.read_text()[-2000:]}\n" for file in sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out")))

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGKILL)
            daemon.wait()
            if daemon.pid in self.hosts.servers:
                self.hosts.servers.remove(daemon.pid)

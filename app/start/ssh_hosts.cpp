#include "app/start/ssh_hosts.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

#include "core/error.h"
#include "launcher/machine.h"
#include "launcher/shell_words.h"

namespace cleave::app {
namespace {

constexpr size_t kAtOnce = 32;

std::vector<std::string> ssh_to(const std::string& host, const LaunchRequest& r,
                                const std::vector<std::string>& options) {
  std::vector<std::string> ssh = {"ssh"};
  if (r.launcher == launcher::LauncherKind::ssh)
    for (const std::string& a : launcher::shell_words(r.launcher_args, "--launcher_args")) ssh.push_back(a);
  if (r.ssh_port) ssh.insert(ssh.end(), {"-p", std::to_string(r.ssh_port)});
  ssh.insert(ssh.end(), options.begin(), options.end());
  ssh.insert(ssh.end(), {"--", host});
  return ssh;
}

std::vector<std::string> lines_of(const std::vector<std::string>& command, const char* more = "") {
  const std::string text = launcher::shell_quoted(command) + more;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(text.c_str(), "r"), pclose);
  std::vector<std::string> lines;
  for (char line[1024]; pipe && std::fgets(line, sizeof(line), pipe.get());)
    lines.emplace_back(line, std::strcspn(line, "\r\n"));
  return lines;
}

// Returns the address of a host in ssh's configuration, without a connection; empty if it has none
// that others can use, such as a host reached through a proxy.
std::string configured_address(const std::string& host, const LaunchRequest& r) {
  std::string name;
  for (const std::string& line : lines_of(ssh_to(host, r, {"-T", "-G"}), " 2>/dev/null")) {
    if (line.starts_with("proxyjump ") || line.starts_with("proxycommand ")) return {};
    if (line.starts_with("hostname ")) name = line.substr(line.find(' ') + 1);
  }
  return name.empty() ? "" : launcher::address_of(name);
}

bool answers(const std::string& host, const LaunchRequest& r) {
  if (launcher::is_this_machine(host)) return true;
  std::vector<std::string> command = {"timeout", "10"};
  const std::vector<std::string> ssh =
      ssh_to(host, r, {"-n", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"});
  command.insert(command.end(), ssh.begin(), ssh.end());
  command.emplace_back("echo here");
  const std::vector<std::string> lines = lines_of(command, " 2>/dev/null");
  return !lines.empty() && lines.back() == "here";
}

}  // namespace

std::string asked_address(const std::string& host, const LaunchRequest& r) {
  std::vector<std::string> command = {"hostname", "-I"};
  if (!launcher::is_this_machine(host)) {
    if (const std::string address = configured_address(host, r); !address.empty()) return address;
    const auto ssh = ssh_to(host, r, {"-o", "BatchMode=yes", "-o", "ConnectTimeout=10"});
    command.insert(command.begin(), ssh.begin(), ssh.end());
  }
  const std::vector<std::string> lines = lines_of(command);
  const std::string address = lines.empty() ? "" : lines[0].substr(0, lines[0].find_first_of(" \t"));
  require(!address.empty(), Exit::rank_lost,
          "{}: not reachable, or reports no address; give --master_addr, or try: {}", host,
          launcher::shell_quoted(command));
  return address;
}

launcher::Hosts answering(const launcher::Hosts& hosts, const LaunchRequest& r) {
  std::vector<char> here(hosts.size());
  std::atomic<size_t> next{0};
  std::vector<std::thread> askers;
  for (size_t i = 0; i < std::min(kAtOnce, hosts.size()); ++i)
    askers.emplace_back([&] {
      for (size_t n; (n = next.fetch_add(1)) < hosts.size();) here[n] = char(answers(hosts[n].name, r));
    });
  for (std::thread& t : askers) t.join();
  launcher::Hosts out;
  for (size_t n = 0; n < hosts.size(); ++n)
    if (here[n]) out.push_back(hosts[n]);
  return out;
}

}  // namespace cleave::app

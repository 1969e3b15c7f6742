#include "launcher/machine.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <numeric>
#include <sstream>

#include "device/gpu_problems.h"

namespace cleave::launcher {

int gpus_of_machine(const std::string& devices) {
  constexpr std::string_view kName = "nvidia";  // nvidia0, nvidia1; others, such as nvidiactl, are not GPUs
  std::error_code error;
  int gpus = 0;
  for (const auto& entry : std::filesystem::directory_iterator(devices, error)) {
    const std::string name = entry.path().filename();
    gpus += name.starts_with(kName) && name.size() > kName.size() &&
            name.find_first_not_of("0123456789", kName.size()) == name.npos;
  }
  return gpus;
}

int usable_gpus(const Environment& env) {
  const auto visible = env.find("CUDA_VISIBLE_DEVICES");
  return visible != env.end() && hides_every_gpu(visible->second) ? 0 : gpus_of_machine();
}

std::vector<std::string> device_names(const Environment& env) {
  const auto visible = env.find("CUDA_VISIBLE_DEVICES");
  if (visible == env.end()) return {};
  std::vector<std::string> names = visible_entries(visible->second);
  const bool all = std::all_of(names.begin(), names.end(), [](const std::string& name) {
    return name.starts_with("GPU-") || name.starts_with("MIG-");
  });
  return all ? names : std::vector<std::string>();
}

std::vector<int> slots_of_machine(const Environment& env, int gpus, int wanted) {
  std::vector<int> slots(size_t(gpus > 0 ? gpus : std::max(1, wanted)));
  std::iota(slots.begin(), slots.end(), 0);
  const auto visible = env.find("CUDA_VISIBLE_DEVICES");
  if (gpus == 0 || visible == env.end() || visible->second.empty()) return slots;
  slots.clear();
  std::istringstream list(visible->second);
  for (std::string word; std::getline(list, word, ',');) {
    int slot = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), slot);
    if (error != std::errc() || end != word.data() + word.size() || slot < 0) return {};
    slots.push_back(slot);
  }
  return slots;
}

std::string own_host_name() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

bool is_this_machine(const std::string& host) { return host == "localhost" || host == own_host_name(); }

std::string address_of(const std::string& host) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &list) != 0) return {};
  std::string found;
  for (const addrinfo* a = list; a && found.empty(); a = a->ai_next) {
    char text[NI_MAXHOST] = {};
    if (getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    const std::string address = text;
    if (!address.starts_with("127.") && address != "::1" && !address.starts_with("fe80:")) found = address;
  }
  freeaddrinfo(list);
  return found;
}

}  // namespace cleave::launcher

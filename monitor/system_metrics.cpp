#include "monitor/system_metrics.h"

#include <dlfcn.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <type_traits>

#include "core/error.h"

namespace cleave::monitor {
namespace {

// The part of NVML's binary interface that is used here.
struct Nvml {
  struct Memory {
    unsigned long long total = 0, free = 0, used = 0;
  };
  struct Use {
    unsigned gpu = 0, memory = 0;  // percent
  };
  int (*init)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, void**) = nullptr;
  int (*memory)(void*, Memory*) = nullptr;
  int (*use)(void*, Use*) = nullptr;
  int (*power)(void*, unsigned*) = nullptr;  // milliwatts, as the next
  int (*limit)(void*, unsigned*) = nullptr;
  std::vector<void*> devices;

  Nvml() {
    void* handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle) return;
    bool all = true;
    const auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      all = all && function;
    };
    find("nvmlInit_v2", init), find("nvmlDeviceGetCount_v2", count);
    find("nvmlDeviceGetHandleByIndex_v2", device), find("nvmlDeviceGetMemoryInfo", memory);
    find("nvmlDeviceGetUtilizationRates", use), find("nvmlDeviceGetPowerUsage", power);
    find("nvmlDeviceGetEnforcedPowerLimit", limit);
    unsigned gpus = 0;
    if (!all || init() != 0 || count(&gpus) != 0) return;
    for (unsigned i = 0; i < gpus; ++i)
      if (void* one = nullptr; device(i, &one) == 0) devices.push_back(one);
  }
};

void add_gpus(std::vector<Scalar>& out) {
  static const Nvml& nvml = *new Nvml;
  for (size_t i = 0; i < nvml.devices.size(); ++i) {
    void* const gpu = nvml.devices[i];
    const auto add = [&](const char* name, double value) {
      out.push_back({fmt::format("system/gpu_{}_{}", i, name), value});
    };
    if (Nvml::Memory m; nvml.memory(gpu, &m) == 0 && m.total > 0) {
      add("memory_usage_megabytes", double(m.used) / 1e6);
      add("memory_usage_percentage", 100 * double(m.used) / double(m.total));
    }
    if (Nvml::Use use; nvml.use(gpu, &use) == 0) add("utilization_percentage", use.gpu);
    unsigned now = 0, most = 0;
    if (nvml.power(gpu, &now) != 0) continue;
    add("power_usage_watts", now / 1e3);
    if (nvml.limit(gpu, &most) == 0 && most > 0) add("power_usage_percentage", 100.0 * now / most);
  }
}

}  // namespace

std::vector<Scalar> SystemMetrics::sample() {
  std::vector<Scalar> out;
  std::ifstream stat(proc_ + "/stat");
  std::string word;
  // user, nice, system, idle, waiting for disks, interrupts (2), stolen; guests are part of user
  if (stat >> word && word == "cpu") {
    int64_t all = 0, idle = 0, ticks = 0;
    for (int i = 0; i < 8 && stat >> ticks; ++i) all += ticks, idle += i == 3 || i == 4 ? ticks : 0;
    if (total_ > 0 && all > total_)
      out.push_back(
          {"system/cpu_utilization_percentage", 100 * double(all - idle - busy_) / double(all - total_)});
    total_ = all, busy_ = all - idle;
  }
  std::ifstream info(proc_ + "/meminfo");
  double total = 0, available = -1;
  for (std::string line; std::getline(info, line);) {
    std::istringstream words(line);
    double kib = 0;
    if (!(words >> word >> kib)) continue;
    if (word == "MemTotal:") total = kib * 1024;
    if (word == "MemAvailable:") available = kib * 1024;
  }
  if (total > 0 && available >= 0) {
    out.push_back({"system/system_memory_usage_megabytes", (total - available) / 1e6});
    out.push_back({"system/system_memory_usage_percentage", 100 * (total - available) / total});
  }
  add_gpus(out);
  return out;
}

}  // namespace cleave::monitor

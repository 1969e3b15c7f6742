// Machines as tables, and their files as the kernel and the NVIDIA driver write them. The numbers are those
// that lscpu and nvidia-smi topo -m print on such machines.
#pragma once
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace cleave::launcher {

struct GpuRow {
  std::string address;
  int node = 0;                 // numa_node of the kernel
  std::string local_cpus = {};  // local_cpulist
  std::string model = "NVIDIA A100";
};

struct MachineTable {
  int cpus = 1, threads = 1;  // hardware threads in all, and per core
  bool adjacent =
      false;  // threads of a core have consecutive numbers; otherwise all first threads come first
  std::vector<std::string> nodes = {};  // CPUs of each NUMA node
  std::string memory = "0";             // nodes with memory
  std::vector<GpuRow> gpus = {};        // in the order of device files
  bool driver = true;                   // the driver lists its GPUs in /proc
};

inline std::vector<GpuRow> gpus(const std::vector<std::pair<std::string, int>>& rows) {
  std::vector<GpuRow> out;
  for (const auto& [address, node] : rows) out.push_back({address, node});
  return out;
}

// Two sockets of 56 cores; GPUs 0 to 3 at the first.
inline MachineTable dgx_h100() {
  return {.cpus = 224,
          .threads = 2,
          .nodes = {"0-55,112-167", "56-111,168-223"},
          .memory = "0-1",
          .gpus = gpus({{"0000:1b:00.0", 0},
                        {"0000:43:00.0", 0},
                        {"0000:52:00.0", 0},
                        {"0000:61:00.0", 0},
                        {"0000:9d:00.0", 1},
                        {"0000:c3:00.0", 1},
                        {"0000:d1:00.0", 1},
                        {"0000:df:00.0", 1}})};
}

// Two sockets of four NUMA nodes with 16 cores; only every second node has GPUs.
inline MachineTable dgx_a100() {
  MachineTable m{.cpus = 256, .threads = 2, .memory = "0-7"};
  for (int n = 0; n < 8; ++n)
    m.nodes.push_back(fmt::format("{}-{},{}-{}", 16 * n, 16 * n + 15, 128 + 16 * n, 128 + 16 * n + 15));
  m.gpus = gpus({{"0000:07:00.0", 3},
                 {"0000:0f:00.0", 3},
                 {"0000:47:00.0", 1},
                 {"0000:4e:00.0", 1},
                 {"0000:87:00.0", 7},
                 {"0000:90:00.0", 7},
                 {"0000:b7:00.0", 5},
                 {"0000:bd:00.0", 5}});
  return m;
}

// A virtual machine with one thread per core; the second pair of GPUs is at the first node.
inline MachineTable nd96asr_v4() {
  return {.cpus = 96,
          .nodes = {"0-23", "24-47", "48-71", "72-95"},
          .memory = "0-3",
          .gpus = gpus({{"0001:00:00.0", 1},
                        {"0002:00:00.0", 1},
                        {"0003:00:00.0", 0},
                        {"0004:00:00.0", 0},
                        {"000b:00:00.0", 3},
                        {"000c:00:00.0", 3},
                        {"000d:00:00.0", 2},
                        {"000e:00:00.0", 2}})};
}

inline MachineTable nd96isr_h100_v5() {
  return {.cpus = 96,
          .nodes = {"0-47", "48-95"},
          .memory = "0-1",
          .gpus = gpus({{"0001:00:00.0", 0},
                        {"0002:00:00.0", 0},
                        {"0003:00:00.0", 0},
                        {"0008:00:00.0", 0},
                        {"0009:00:00.0", 1},
                        {"000a:00:00.0", 1},
                        {"000b:00:00.0", 1},
                        {"000c:00:00.0", 1}})};
}

// The GPU's memory is node 1; nodes 2 to 8 are for its slices.
inline MachineTable gh200() {
  return {.cpus = 72,
          .nodes = {"0-71", "", "", "", "", "", "", "", ""},
          .memory = "0-1",
          .gpus = {{"0009:01:00.0", 0, "0-71", "GH200"}}};
}

// One socket; the hypervisor tells no node for PCI devices.
inline MachineTable cloud_vm() {
  return {.cpus = 8,
          .threads = 2,
          .adjacent = true,
          .nodes = {"0-7"},
          .gpus = {{"0000:00:1e.0", -1, "0-7"}, {"0000:00:1f.0", -1, "0-7"}}};
}

inline void write_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text << '\n';
}

inline std::string uuid_of(size_t gpu) {
  return fmt::format("GPU-{:08x}-1111-2222-3333-444444444444", gpu * 0x11111111);
}

// Writes the machine below a folder, which topology_of() then reads.
inline void write_machine(const std::filesystem::path& root, const MachineTable& m) {
  const std::filesystem::path system = root / "sys/devices/system";
  write_file(system / "cpu/online", fmt::format("0-{}", m.cpus - 1));
  const int cores = m.cpus / m.threads;
  for (int cpu = 0; cpu < m.cpus; ++cpu) {
    const int first = m.adjacent ? cpu - cpu % m.threads : cpu % cores, step = m.adjacent ? 1 : cores;
    std::string threads = std::to_string(first);
    for (int t = 1; t < m.threads; ++t) threads += fmt::format(",{}", first + t * step);
    const std::filesystem::path folder = system / fmt::format("cpu/cpu{}", cpu);
    std::filesystem::create_directory(folder);
    std::filesystem::create_directory(folder / "topology");
    std::ofstream(folder / "topology/thread_siblings_list") << threads << '\n';
  }
  for (size_t n = 0; n < m.nodes.size(); ++n)
    write_file(system / fmt::format("node/node{}/cpulist", n), m.nodes[n]);
  write_file(system / "node/has_memory", m.memory);
  for (size_t i = 0; i < m.gpus.size(); ++i) {
    const GpuRow& gpu = m.gpus[i];
    const auto device = root / "sys/bus/pci/devices" / gpu.address;
    write_file(device / "vendor", "0x10de");
    write_file(device / "class", "0x030200");
    write_file(device / "device", fmt::format("0x{:04x}", gpu.model.size()));
    write_file(device / "numa_node", std::to_string(gpu.node));
    write_file(device / "local_cpulist", gpu.local_cpus);
    write_file(root / fmt::format("dev/nvidia{}", i), "");
    if (m.driver)
      write_file(
          root / "proc/driver/nvidia/gpus" / gpu.address / "information",
          fmt::format(
              "Model: \t\t {}\nIRQ:   \t\t 107\nGPU UUID: \t {}\nDevice Minor: \t {}\nGPU Excluded:\t No",
              gpu.model, uuid_of(i), i));
  }
  write_file(root / "dev/nvidiactl", "");
}

}  // namespace cleave::launcher

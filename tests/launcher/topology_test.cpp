// Cores and memory of ranks on known machines, and the GPUs of ranks.
#include "launcher/topology.h"

#include <gtest/gtest.h>

#include <numeric>

#include "launcher/placed_rank.h"
#include "launcher/rank_gpus.h"
#include "tests/launcher/machines.h"
#include "tests/scratch.h"

namespace cleave::launcher {
namespace {

namespace fs = std::filesystem;

Topology read(const MachineTable& machine) {
  const Scratch scratch;
  write_machine(scratch.folder(), machine);
  return topology_of(scratch.folder());
}

std::vector<int> upto(int cpus) {
  std::vector<int> all(size_t(cpus), 0);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

NodeStart node_with(const std::vector<int>& slots, bool set_devices = true) {
  NodeStart node;
  node.set_devices = set_devices;
  for (size_t i = 0; i < slots.size(); ++i) node.ranks.push_back({int(i), int(i), slots[i], {"program"}});
  return node;
}

using Texts = std::vector<std::string>;

const Topology& h100() {
  static const Topology t = read(dgx_h100());
  return t;
}

const Topology& a100() {
  static const Topology t = read(dgx_a100());
  return t;
}
// A small machine with the GPUs of an ND96asr_v4: one CPU per node.
MachineTable four_nodes() {
  MachineTable m = nd96asr_v4();
  m.cpus = 4;
  m.nodes = {"0", "1", "2", "3"};
  return m;
}

// Places of ranks on these slots.
Texts places(const Topology& t, const std::vector<int>& usable, const std::vector<int>& slots) {
  Texts texts;
  for (const RankPlace& p : share_cores(t, usable, gpu_nodes_of(node_with(slots), {}, t)))
    texts.push_back(describe_place(p, t));
  return texts;
}
// Places of one rank per GPU.
Texts places(const Topology& t) { return places(t, upto(int(t.cpus.size())), upto(int(t.gpus.size()))); }

TEST(Topology, GivesRanksOfADgxH100TheirSocketAndWholeCores) {
  EXPECT_EQ(
      places(h100()),
      (Texts{"0-13,112-125 of NUMA node 0; memory: node 0", "14-27,126-139 of NUMA node 0; memory: node 0",
             "28-41,140-153 of NUMA node 0; memory: node 0", "42-55,154-167 of NUMA node 0; memory: node 0",
             "56-69,168-181 of NUMA node 1; memory: node 1", "70-83,182-195 of NUMA node 1; memory: node 1",
             "84-97,196-209 of NUMA node 1; memory: node 1",
             "98-111,210-223 of NUMA node 1; memory: node 1"}));
}

TEST(Topology, NeverSplitsACoreBetweenRanks) {
  EXPECT_EQ(
      places(h100(), upto(224), {0, 1, 2, 4}),
      (Texts{"0-17,112-129 of NUMA node 0; memory: node 0", "18-35,130-147 of NUMA node 0; memory: node 0",
             "36-53,148-165 of NUMA node 0; memory: node 0",
             "56-111,168-223 of NUMA node 1; memory: node 1"}));
}

TEST(Topology, GivesRanksOfADgxA100TheNodesOfTheirGpusWhichAreNotInOrder) {
  EXPECT_EQ(
      places(a100()),
      (Texts{"48-55,176-183 of NUMA node 3; memory: node 3", "56-63,184-191 of NUMA node 3; memory: node 3",
             "16-23,144-151 of NUMA node 1; memory: node 1", "24-31,152-159 of NUMA node 1; memory: node 1",
             "112-119,240-247 of NUMA node 7; memory: node 7",
             "120-127,248-255 of NUMA node 7; memory: node 7", "80-87,208-215 of NUMA node 5; memory: node 5",
             "88-95,216-223 of NUMA node 5; memory: node 5"}));
}

TEST(Topology, GivesRanksOfAzureMachinesTheNodesOfTheirGpus) {
  EXPECT_EQ(places(read(nd96asr_v4())),
            (Texts{"24-35 of NUMA node 1; memory: node 1", "36-47 of NUMA node 1; memory: node 1",
                   "0-11 of NUMA node 0; memory: node 0", "12-23 of NUMA node 0; memory: node 0",
                   "72-83 of NUMA node 3; memory: node 3", "84-95 of NUMA node 3; memory: node 3",
                   "48-59 of NUMA node 2; memory: node 2", "60-71 of NUMA node 2; memory: node 2"}));
  EXPECT_EQ(places(read(nd96isr_h100_v5())),
            (Texts{"0-11 of NUMA node 0; memory: node 0", "12-23 of NUMA node 0; memory: node 0",
                   "24-35 of NUMA node 0; memory: node 0", "36-47 of NUMA node 0; memory: node 0",
                   "48-59 of NUMA node 1; memory: node 1", "60-71 of NUMA node 1; memory: node 1",
                   "72-83 of NUMA node 1; memory: node 1", "84-95 of NUMA node 1; memory: node 1"}));
}

TEST(Topology, KeepsMemoryOfAGh200RankOutOfTheGpu) {
  EXPECT_EQ(places(read(gh200())), Texts{"0-71 of NUMA node 0; memory: node 0"});
  MachineTable two = four_nodes();  // two GPUs; their own nodes 2 and 3 have no CPUs
  two.nodes = {"0-1", "2-3", "", ""};
  two.gpus = {{"0009:01:00.0", 3, "2-3"}, {"0019:01:00.0", 2, "0-1"}};
  EXPECT_EQ(places(read(two)),
            (Texts{"2-3 of NUMA node 1; memory: node 1", "0-1 of NUMA node 0; memory: node 0"}));
}

TEST(Topology, CutsAMachineWithoutNodesOfGpusEvenlyAtWholeCores) {
  const Topology vm = read(cloud_vm());
  EXPECT_EQ(places(vm), (Texts{"0-3 of NUMA node 0", "4-7 of NUMA node 0"}));
  EXPECT_EQ(places(vm, upto(8), {0, 1, 0}),
            (Texts{"0-1 of NUMA node 0", "2-3 of NUMA node 0", "4-5 of NUMA node 0"}));
  // More ranks than cores: single threads; more ranks than threads: nothing.
  EXPECT_EQ(places(vm, upto(8), {0, 0, 0, 0, 0})[4], "4 of NUMA node 0");
  EXPECT_EQ(places(vm, {2, 5}, {0, 0, 0}), (Texts{"", "", ""}));
  // Two nodes, and a GPU with an unknown node.
  MachineTable table = dgx_h100();
  table.gpus[3].node = -1;
  table.gpus[3].local_cpus = "0-223";
  const Topology unknown = read(table);
  EXPECT_EQ(places(unknown)[3], "42-55,154-167 of NUMA node 0; memory: node 0");
  EXPECT_EQ(places(unknown, upto(224), {0, 3})[1], "56-111,168-223 of NUMA node 1; memory: node 1");
}

TEST(Topology, SharesCoresOfRanksWithoutGpusOverTheNodes) {
  const Topology& t = h100();
  const auto shares = [&](size_t ranks) {
    Texts texts;
    for (const RankPlace& p : share_cores(t, upto(224), std::vector<int>(ranks, -1)))
      texts.push_back(describe_place(p, t));
    return texts;
  };
  EXPECT_EQ(shares(1), Texts{"0-223 of NUMA nodes 0-1"});
  EXPECT_EQ(shares(2), (Texts{"0-55,112-167 of NUMA node 0; memory: node 0",
                              "56-111,168-223 of NUMA node 1; memory: node 1"}));
  EXPECT_EQ(shares(3)[1], "37-73,149-185 of NUMA nodes 0-1");
  EXPECT_EQ(shares(4)[2], "56-83,168-195 of NUMA node 1; memory: node 1");
  EXPECT_EQ(shares(224)[1], "112 of NUMA node 0; memory: node 0");
  const Topology none;  // a machine that tells nothing
  EXPECT_EQ(share_cores(none, {4, 5, 6, 7, 8}, {-1, -1}),
            (std::vector<RankPlace>{{{4, 5}, -1}, {{6, 7}, -1}}));
}

TEST(Topology, StaysInTheCoresThatTheLauncherMayUse) {
  // taskset -c 0-7,56-63: four cores of each node for two ranks there, without the second threads.
  std::vector<int> some = upto(8);
  for (int core = 56; core < 64; ++core) some.push_back(core);
  EXPECT_EQ(places(h100(), some, {2, 4, 5}),
            (Texts{"0-7 of NUMA node 0; memory: node 0", "56-59 of NUMA node 1; memory: node 1",
                   "60-63 of NUMA node 1; memory: node 1"}));
  // The second node has no or too few usable cores for its ranks.
  EXPECT_EQ(places(h100(), upto(8), {0, 4}),
            (Texts{"0-3 of NUMA node 0; memory: node 0", "4-7 of NUMA node 0; memory: node 0"}));
  std::vector<int> fifteen = upto(15);
  fifteen.push_back(56);
  EXPECT_EQ(places(h100(), fifteen, {0, 4})[1], "8-14,56 of NUMA nodes 0-1");
}

TEST(Topology, FollowsTheDevicesOfEachRank) {
  const Topology& t = a100();
  const auto nodes = [&](const NodeStart& node, const Environment& env) {
    return gpu_nodes_of(node, env, t);
  };
  using Nodes = std::vector<int>;
  EXPECT_EQ(nodes(node_with({2, 5}), {{"CUDA_VISIBLE_DEVICES", "7"}}), (Nodes{1, 7}));  // the plan sets slots
  const NodeStart two = node_with({0, 1}, false);
  EXPECT_EQ(nodes(two, {}), (Nodes{3, 3}));
  EXPECT_EQ(nodes(two, {{"CUDA_VISIBLE_DEVICES", "7,2"}}), (Nodes{5, 1}));
  EXPECT_EQ(nodes(two, {{"CUDA_VISIBLE_DEVICES", "6,-1,2"}}), (Nodes{5, 5}));
  EXPECT_EQ(nodes(two, {{"CUDA_VISIBLE_DEVICES", "2,8"}}), (Nodes{1, -1}));
  EXPECT_EQ(nodes(two, {{"CUDA_VISIBLE_DEVICES", ""}}), (Nodes{-1, -1}));
  EXPECT_EQ(nodes(two, {{"CUDA_VISIBLE_DEVICES", "x,2"}}), (Nodes{-1, 1}));
  EXPECT_EQ(nodes(two, {{"CUDA_VISIBLE_DEVICES", "GPU-66666666,GPU-22222222-1111-2222-3333-444444444444"}}),
            (Nodes{5, 1}));
  EXPECT_EQ(nodes(two, {{"CUDA_VISIBLE_DEVICES", "GPU-,GPU-9"}}), (Nodes{-1, -1}));  // several, none
  EXPECT_EQ(
      nodes(two, {{"CUDA_VISIBLE_DEVICES", "MIG-GPU-44444444-1111-2222-3333-444444444444/1/0,MIG-5f6a"}}),
      (Nodes{7, -1}));
  NodeStart other = node_with({0, 1}, false);
  other.environment["CUDA_VISIBLE_DEVICES"] = "4,6";  // of .deepspeed_env
  EXPECT_EQ(nodes(other, {{"CUDA_VISIBLE_DEVICES", "0,1"}}), (Nodes{7, 5}));
  for (RankStart& r : other.ranks) r.command = {"cleave", "train", "--device", "cpu"};
  EXPECT_EQ(nodes(other, {}), (Nodes{-1, -1}));
  for (RankStart& r : other.ranks) r.command = {"cleave", "train", "--device=cuda:1"};
  EXPECT_EQ(nodes(other, {}), (Nodes{5, 5}));
}

TEST(Topology, KnowsTheOrderOfCudaOnlyForEqualGpusOrPciOrder) {
  Topology t = a100();
  t.gpus[7].model = "NVIDIA H100";  // CUDA shows it first
  const NodeStart two = node_with({0, 7});
  EXPECT_EQ(gpu_nodes_of(two, {}, t), (std::vector<int>{-1, -1}));
  EXPECT_EQ(gpu_nodes_of(two, {{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}}, t), (std::vector<int>{3, 5}));
  for (GpuPlace& gpu : t.gpus) gpu.node = 2;
  EXPECT_EQ(gpu_nodes_of(two, {}, t), (std::vector<int>{2, 2}));  // any order
}

TEST(Topology, CountsOnlyGpusOfThisProcessInTheOrderOfTheirAddresses) {
  const Scratch scratch;
  MachineTable machine = four_nodes();
  machine.gpus.push_back({"a000:00:00.0", 0});
  machine.gpus.push_back({"10000:00:00.0", 0});  // the last number, but not the last text
  write_machine(scratch.folder(), machine);
  EXPECT_EQ(topology_of(scratch.folder()).gpus.back().address, "10000:00:00.0");
  // SLURM's control group or a container leaves two device files.
  for (int gpu = 0; gpu < 10; ++gpu)
    if (gpu != 4 && gpu != 6) fs::remove(scratch.folder() / fmt::format("dev/nvidia{}", gpu));
  Topology t = topology_of(scratch.folder());
  EXPECT_EQ(gpu_nodes_of(node_with({0, 1}), {}, t), (std::vector<int>{3, 2}));
  write_file(scratch.folder() / "proc/driver/nvidia/gpus/000b:00:00.0/information",
             "GPU UUID: GPU-1\nDevice Minor: 4\nGPU Excluded: Yes");
  t = topology_of(scratch.folder());
  ASSERT_EQ(t.gpus.size(), 1u);
  EXPECT_EQ(t.gpus[0].uuid, uuid_of(6));
}

TEST(Topology, FindsGpusOnTheBusIfTheDriverDoesNotListThem) {
  const Scratch scratch;
  MachineTable machine = four_nodes();
  machine.driver = false;
  write_machine(scratch.folder(), machine);
  const fs::path devices = scratch.folder() / "sys/bus/pci/devices";
  write_file(devices / "0001:00:00.1/vendor", "0x10de");  // its audio device
  write_file(devices / "0001:00:00.1/class", "0x040300");
  write_file(devices / "0101:00:00.0/vendor", "0x15b3");
  write_file(devices / "0101:00:00.0/class", "0x030200");
  const Topology t = topology_of(scratch.folder());
  EXPECT_EQ(gpu_nodes_of(node_with({3, 4}), {}, t), (std::vector<int>{0, 3}));
  fs::remove(scratch.folder() / "dev/nvidia5");  // which one is missing is unknown
  EXPECT_TRUE(topology_of(scratch.folder()).gpus.empty());
}

TEST(Topology, TreatsMissingAndMalformedFilesAsUnknown) {
  const Scratch scratch;
  EXPECT_TRUE(topology_of(scratch.path("gone")).cpus.empty());
  write_machine(scratch.folder(), cloud_vm());
  const fs::path system = scratch.folder() / "sys/devices/system";
  for (const char* list : {"", "a", "3-1", "-1", "0-", "0-99999999", "0-7;", "99999999999999999999"}) {
    write_file(system / "node/node0/cpulist", list);
    write_file(system / "cpu/cpu3/topology/thread_siblings_list", list);
    write_file(system / "node/has_memory", list);
    const Topology t = topology_of(scratch.folder());
    EXPECT_EQ(t.cpus.at(3), (Cpu{3, 3, -1})) << list;
    EXPECT_TRUE(t.memory_nodes.empty()) << list;
    EXPECT_EQ(describe_place({{1, 2, 3}, -1}, t), "1-3") << list;
  }
  write_file(scratch.folder() / "sys/devices/system/node/nodes/cpulist", "0");
  write_file(scratch.folder() / "proc/driver/nvidia/gpus/x/information", "Device Minor: ../null");
  EXPECT_EQ(topology_of(scratch.folder()).gpus.size(), 2u);
}

TEST(Topology, HasOnlyCpusThatAreOnline) {
  const Scratch scratch;
  write_machine(scratch.folder(), cloud_vm());  // second threads switched off
  write_file(scratch.folder() / "sys/devices/system/cpu/online", "0,2,4,6");
  const Topology t = topology_of(scratch.folder());
  ASSERT_EQ(t.cpus.size(), 4u);
  EXPECT_EQ(t.cpus[3], (Cpu{6, 6, 0}));
}

TEST(Topology, PlacesRanksOfOtherLaunchersNearTheirGpus) {
  Machine machine{.usable = upto(224), .topology = h100(), .binds_memory = true};
  const comm::RankInfo info{.rank = 13, .world = 16, .local_rank = 5, .local_size = 8};
  const std::vector<int> sixth = {70,  71,  72,  73,  74,  75,  76,  77,  78,  79,  80,  81,  82,  83,
                                  182, 183, 184, 185, 186, 187, 188, 189, 190, 191, 192, 193, 194, 195};
  EXPECT_EQ(adopted_place(info, {"python"}, {}, machine), (RankPlace{sixth, 1}));
  EXPECT_EQ(adopted_place(info, {"python"}, {{"OMP_NUM_THREADS", "28"}}, machine), (RankPlace{sixth, 1}));
  EXPECT_EQ(adopted_place(info, {"python"}, {{"OMP_NUM_THREADS", "29"}}, machine), RankPlace());
  EXPECT_EQ(adopted_place(info, {"cleave", "--device", "cpu"}, {}, machine), RankPlace());
  EXPECT_EQ(adopted_place(info, {"python"}, {{"CUDA_VISIBLE_DEVICES", "-1"}}, machine), RankPlace());
  // One GPU per process, as SLURM and some MPI launchers set it.
  const RankPlace own = adopted_place(info, {"python"}, {{"CUDA_VISIBLE_DEVICES", "4"}}, machine);
  EXPECT_EQ(describe_place(own, h100()), "91-97,203-209 of NUMA node 1; memory: node 1");
  machine.usable.pop_back();  // the other launcher bound the rank
  EXPECT_EQ(adopted_place(info, {"python"}, {}, machine), RankPlace());
}

TEST(Topology, BindsMemoryOnlyToNodesThatThisProcessMayUse) {
  const Scratch scratch;
  write_machine(scratch.folder(), four_nodes());
  write_file(scratch.folder() / "proc/self/status", "Name:\tcleave\nMems_allowed_list:\t1");
  const Topology t = topology_of(scratch.folder());
  EXPECT_EQ(t.memory_nodes, std::vector<int>{1});
  EXPECT_EQ(share_cores(t, upto(4), {0, 1})[0].memory, -1);
}

TEST(Topology, IsThatOfThisMachine) {
  const Topology t = topology_of();
  ASSERT_FALSE(t.cpus.empty());
  for (const Cpu& cpu : t.cpus) EXPECT_LE(cpu.core, cpu.number);
}

}  // namespace
}  // namespace cleave::launcher

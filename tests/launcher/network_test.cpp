// Checks of a host's network, on files as the kernel writes them.
#include "launcher/network.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/launcher/machines.h"
#include "tests/scratch.h"

namespace cleave::launcher {
namespace {

namespace fs = std::filesystem;

// A GPU host with an Ethernet interface and two InfiniBand adapters, without problems.
void write_host(const fs::path& root) {
  for (const char* name : {"lo", "eth0", "ib0"})
    write_file(root / "sys/class/net" / name / "operstate", "up");
  for (const char* device : {"mlx5_ib0", "mlx5_ib1"}) {
    const fs::path port = root / "sys/class/infiniband" / device / "ports/1";
    write_file(port / "state", "4: ACTIVE");
    write_file(port / "rate", "400 Gb/sec (4X NDR)");
    write_file(port / "link_layer", "InfiniBand");
  }
  for (const char* address : {"0101:00:00.0", "0102:00:00.0"})
    write_file(root / "sys/bus/pci/devices" / address / "class", "0x020700");
  write_file(root / "dev/infiniband/uverbs0", "");
  write_file(root / "proc/self/status", "CapInh:\t0000000000000000\nCapEff:\t00000000a80425fb");
  write_file(root / "proc/self/limits",
             "Limit                     Soft Limit           Hard Limit           Units     \n"
             "Max locked memory         unlimited            unlimited            bytes     ");
  write_file(root / "proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15");
  write_file(root / "sys/module/nvidia_peermem/refcnt", "0");
}

class Network : public testing::Test {
 protected:
  Network() { write_host(root()); }
  fs::path root() const { return scratch_.folder(); }

  // Texts of the problems, except of this machine's clock.
  std::vector<std::string> problems(const Environment& env = {}) const {
    HostNetwork host = network_of(root());
    host.clock = true;
    std::vector<std::string> texts;
    for (const NetworkProblem& p : network_problems(host, env)) texts.push_back(p.text);
    return texts;
  }
  void limit_locked_memory(const std::string& limit) const {
    write_file(root() / "proc/self/limits",
               fmt::format("Max locked memory         {:20} 8388608              bytes     ", limit));
  }

 private:
  const Scratch scratch_;
};
using Texts = std::vector<std::string>;

TEST_F(Network, OfAGoodHostHasNoProblems) {
  const HostNetwork host = network_of(root());
  EXPECT_EQ(host.interfaces, (Texts{"eth0", "ib0", "lo"}));
  ASSERT_EQ(host.ports.size(), 2u);
  EXPECT_EQ(host.ports[1], (InfiniBandPort{"mlx5_ib1", 1, "ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand"}));
  EXPECT_TRUE(host.gpu_direct && host.gpu_driver && host.device_files);
  EXPECT_EQ(problems({{"NCCL_SOCKET_IFNAME", "eth"}, {"NCCL_IB_HCA", "mlx5"}, {"NCCL_IB_DISABLE", "0"}}),
            Texts());
}

TEST_F(Network, NamesInterfacesThatAreAbsent) {
  const Texts absent = {
      "NCCL_SOCKET_IFNAME: matches no network interface (got eth1,en, expected some of eth0, ib0, lo); "
      "correct it, "
      "or unset it"};
  EXPECT_EQ(problems({{"NCCL_SOCKET_IFNAME", "eth1,en"}}), absent);
  for (const char* present : {"eth", "=eth0", "bond,ib", "^docker", "^=eth0"})
    EXPECT_EQ(problems({{"NCCL_SOCKET_IFNAME", present}}), Texts()) << present;
  for (const char* none : {"=eth", "^eth,ib,lo", "=bond0,eth", "eth00"})
    EXPECT_EQ(problems({{"NCCL_SOCKET_IFNAME", none}}).size(), 1u) << none;
}

TEST_F(Network, ReadsTheFileOfNcclForVariablesThatAreNotSet) {
  write_file(root() / "etc/nccl.conf",
             "# of the host\nNCCL_IB_PCI_RELAXED_ORDERING=1\nNCCL_SOCKET_IFNAME=bond0");
  EXPECT_EQ(problems().size(), 1u);
  EXPECT_EQ(problems({{"NCCL_SOCKET_IFNAME", "eth0"}}), Texts());
}

TEST_F(Network, NamesALimitOfLockedMemory) {
  limit_locked_memory("8388608");
  EXPECT_EQ(problems(),
            Texts{"ulimit -l: not enough locked memory for InfiniBand (got 8.00 MiB, expected unlimited); "
                  "set memlock in /etc/security/limits.conf, LimitMEMLOCK of the service that starts "
                  "ranks, or --ulimit memlock=-1 of the container"});
  write_file(root() / "proc/self/status",
             "CapEff:\t0000000000004000");  // CAP_IPC_LOCK: the kernel ignores the limit
  EXPECT_EQ(problems(), Texts());
  write_file(root() / "proc/self/status", "CapEff:\t0000000000008000");
  limit_locked_memory("1081994371072");
  EXPECT_EQ(problems(), Texts());
  limit_locked_memory("65536");
  fs::remove_all(root() / "sys/class/infiniband");
  fs::remove_all(root() / "sys/bus");
  EXPECT_EQ(problems(), Texts());  // sockets lock no memory
}

TEST_F(Network, NamesInfiniBandThatNcclCannotUse) {
  write_file(root() / "sys/class/infiniband/mlx5_ib1/ports/1/state", "2: INIT");
  const std::string down =
      "InfiniBand: 1 of 2 ports are not active (got mlx5_ib1:1 INIT, expected ACTIVE); check cables and the "
      "subnet "
      "manager (ibstat), or select other ports with NCCL_IB_HCA";
  EXPECT_EQ(problems(), Texts{down});
  for (const char* other : {"=mlx5_ib0", "mlx5_ib0:1", "^mlx5_ib1", "^=mlx5_ib1:1"})
    EXPECT_EQ(problems({{"NCCL_IB_HCA", other}}), Texts()) << other;
  EXPECT_EQ(problems({{"NCCL_IB_HCA", "mlx5_ib1:1"}}).size(), 1u);
  EXPECT_EQ(
      problems({{"NCCL_IB_HCA", "=mlx5_ib0:2,mlx5"}}),
      Texts{"NCCL_IB_HCA: matches no InfiniBand port (got =mlx5_ib0:2,mlx5, expected some of mlx5_ib0:1, "
            "mlx5_ib1:1); correct it, or unset it"});
  EXPECT_EQ(
      problems({{"NCCL_IB_DISABLE", "1"}}),
      Texts{
          "NCCL_IB_DISABLE=1: NCCL uses sockets instead of InfiniBand (the host has mlx5_ib0:1, mlx5_ib1:1); "
          "unset it"});
  fs::remove_all(root() / "dev/infiniband");
  EXPECT_EQ(problems(),
            (Texts{"InfiniBand: /dev/infiniband is missing, so NCCL uses sockets; start the container "
                   "with --device /dev/infiniband",
                   down}));
  fs::remove_all(root() / "sys/class/infiniband");
  EXPECT_EQ(problems(), Texts{"InfiniBand: 2 adapters without a driver; load it: sudo modprobe mlx5_ib"});
  EXPECT_EQ(problems({{"NCCL_IB_DISABLE", "1"}}), Texts());
}

TEST_F(Network, NamesAMissingModuleForGpuDirect) {
  fs::remove_all(root() / "sys/module");
  EXPECT_EQ(problems(),
            Texts{"GPUDirect: the module nvidia_peermem is not loaded, so messages between hosts are "
                  "copied through host memory; load it: sudo modprobe nvidia_peermem"});
  // The open driver needs no module since Linux 5.12.
  write_file(root() / "proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15");
  for (const auto& [release, missing] : std::map<std::string, size_t>{{"5.11.22-generic", 1},
                                                                      {"5.12.0", 0},
                                                                      {"5.15.0-1064-azure", 0},
                                                                      {"4.18.0-553.el8", 1},
                                                                      {"6.8.0", 0},
                                                                      {"", 1}}) {
    write_file(root() / "proc/sys/kernel/osrelease", release);
    EXPECT_EQ(problems().size(), missing) << release;
  }
  write_file(root() / "sys/module/nv_peer_mem/refcnt", "0");
  EXPECT_EQ(problems(), Texts());
  fs::remove_all(root() / "sys/module");
  fs::remove_all(root() / "proc/driver");  // no GPUs
  EXPECT_EQ(problems(), Texts());
}

TEST_F(Network, WithoutFilesHasNoProblems) {
  const HostNetwork host = network_of(root() / "gone");
  EXPECT_TRUE(host.ports.empty() && !host.locked_memory && !host.gpu_direct);
  EXPECT_EQ(network_problems({.clock = false}, {})[0].check, NetworkCheck::clock);
}

TEST(NetworkWarnings, ArePrintedOnceByTheFirstRankThatHasThem) {
  // Three hosts of two ranks; ranks 2 and 4 are the first of their hosts.
  std::vector<Texts> said(6);
  comm::run_ranks(6, [&](comm::Communicator& world) {
    std::vector<NetworkProblem> mine;
    if (world.rank() == 2) mine = {{NetworkCheck::ports, "a port of rank 2"}};
    if (world.rank() == 4)
      mine = {{NetworkCheck::gpu_direct, "a module"}, {NetworkCheck::ports, "a port of rank 4"}};
    said[size_t(world.rank())] = agreed_warnings(world, mine, 3);
  });
  EXPECT_EQ(said,
            (std::vector<Texts>{
                {}, {}, {"a port of rank 2 (on 2 of 3 hosts)"}, {}, {"a module (on 1 of 3 hosts)"}, {}}));
}

}  // namespace
}  // namespace cleave::launcher

#include "core/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

// Folders that mimic /proc/self and /sys/fs/cgroup.
class Machine {
 public:
  Machine() {
    char name[] = "/tmp/cleave_coresXXXXXX";
    root_ = mkdtemp(name);
  }
  ~Machine() { fs::remove_all(root_); }
  Machine& groups(const std::string& lines) { return put("proc/cgroup", lines); }
  Machine& file(const std::string& path, const std::string& text) { return put("mount/" + path, text); }
  double quota() const { return cpu_quota(root_ / "proc", root_ / "mount"); }

 private:
  Machine& put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << '\n';
    return *this;
  }
  fs::path root_;
};

TEST(CpuQuota, IsQuotaOverPeriodOfVersion2) {
  EXPECT_DOUBLE_EQ(Machine().groups("0::/job").file("job/cpu.max", "150000 100000").quota(), 1.5);
  EXPECT_EQ(Machine().groups("0::/job").file("job/cpu.max", "max 100000").quota(), 0);
}

TEST(CpuQuota, IsTheMinimumOfAllParentGroups) {
  Machine m;
  m.groups("0::/a/b/c");
  m.file("a/b/c/cpu.max", "800000 100000")
      .file("a/b/cpu.max", "max 100000")
      .file("a/cpu.max", "200000 100000");
  EXPECT_DOUBLE_EQ(m.quota(), 2);
  m.file("a/b/c/cpu.max", "50000 100000");
  EXPECT_DOUBLE_EQ(m.quota(), 0.5);
}

// A container reports its path on the host, and finds its own group at the mount.
TEST(CpuQuota, IsFoundAtTheMountIfThePathExistsOnTheHostOnly) {
  EXPECT_DOUBLE_EQ(Machine().groups("0::/kubepods/pod1/x").file("cpu.max", "300000 100000").quota(), 3);
}

TEST(CpuQuota, IsReadFromTheControllersOfVersion1) {
  Machine m;
  m.groups("9:name=systemd:/\n4:cpu,cpuacct:/docker/x\n3:cpuset:/\n0::/");
  m.file("cpu,cpuacct/docker/x/cpu.cfs_quota_us", "400000")
      .file("cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000");
  EXPECT_DOUBLE_EQ(m.quota(), 4);
  m.file("cpu,cpuacct/docker/cpu.cfs_quota_us", "250000")
      .file("cpu,cpuacct/docker/cpu.cfs_period_us", "100000");
  EXPECT_DOUBLE_EQ(m.quota(), 2.5);
  EXPECT_EQ(Machine()
                .groups("1:cpu:/")
                .file("cpu/cpu.cfs_quota_us", "-1")
                .file("cpu/cpu.cfs_period_us", "100000")
                .quota(),
            0);
}

TEST(CpuQuota, IsUnlimitedIfNothingCanBeRead) {
  EXPECT_EQ(Machine().quota(), 0);
  EXPECT_EQ(Machine().groups("garbage\n0::").file("cpu.max", "").quota(), 0);
  EXPECT_EQ(Machine().groups("0::/x").file("x/cpu.max", "12 0").quota(), 0);
  EXPECT_EQ(Machine().groups("0::/x").file("x/cpu.max", "words here").quota(), 0);
}

TEST(Threads, AreOnePerCoreAndSharedByUnboundRanks) {
  EXPECT_EQ(choose_threads({.cores = 8}).threads, 8);
  EXPECT_EQ(choose_threads({.cores = 8, .local_ranks = 4}).threads, 2);
  EXPECT_EQ(choose_threads({.cores = 8, .local_ranks = 3}).threads, 2);
  EXPECT_EQ(choose_threads({.cores = 2, .local_ranks = 4}).threads, 1);
  EXPECT_EQ(choose_threads({.cores = 8, .local_ranks = 4, .own_cores = true}).threads, 8);
}

TEST(Threads, DoNotExceedTheQuotaOfTheRank) {
  EXPECT_EQ(choose_threads({.cores = 64, .quota = 4}).threads, 4);
  EXPECT_EQ(choose_threads({.cores = 64, .quota = 1.5}).threads, 2);
  EXPECT_EQ(choose_threads({.cores = 64, .quota = 0.1}).threads, 1);
  EXPECT_EQ(choose_threads({.cores = 2, .quota = 16}).threads, 2);
  EXPECT_EQ(choose_threads({.cores = 64, .quota = 8, .local_ranks = 4}).threads, 2);
  EXPECT_EQ(choose_threads({.cores = 16, .quota = 8, .local_ranks = 4, .own_cores = true}).threads, 2);
  EXPECT_NE(choose_threads({.cores = 64, .quota = 4}).why.find("grants 4 of 64 cores"), std::string::npos);
}

TEST(Threads, FollowTheOptionThenTheVariable) {
  setenv("OMP_NUM_THREADS", "3,2", 1);
  EXPECT_EQ(threads_of_process(5).threads, 5);
  EXPECT_EQ(threads_of_process(5).why, "--threads");
  EXPECT_EQ(threads_of_process().threads, 3);
  for (const char* wrong : {"0", "-2", "two", "2x", "99999999999999999999", "5000"}) {
    setenv("OMP_NUM_THREADS", wrong, 1);
    EXPECT_THROW(threads_of_process(), Error) << wrong;
    EXPECT_EQ(threads_of_process(2).threads, 2);
  }
}

TEST(UsableCores, EqualTheAffinityMask) {
  const std::vector<int> all = usable_cores();
  ASSERT_FALSE(all.empty());
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(all.back(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_cores(), std::vector<int>{all.back()});
  EXPECT_EQ(thread_facts().cores, 1);
}

}  // namespace
}  // namespace cleave

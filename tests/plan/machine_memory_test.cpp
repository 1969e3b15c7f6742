#include "plan/machine_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace cleave::plan {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMiB = 1 << 20;

// Folders like /proc and /sys/fs/cgroup on a machine with 8 GiB available.
class Machine {
 public:
  Machine() {
    char name[] = "/tmp/cleave_memoryXXXXXX";
    root_ = mkdtemp(name);
    put("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB");
  }
  ~Machine() { fs::remove_all(root_); }
  Machine& groups(const std::string& lines) { return put("proc/self/cgroup", lines); }
  Machine& version2(const std::string& group, const std::string& most, int64_t now) {
    return put("mount/" + group + "memory.max", most)
        .put("mount/" + group + "memory.current", std::to_string(now));
  }
  Machine& version1(const std::string& group, int64_t most, int64_t now) {
    return put("mount/memory/" + group + "memory.limit_in_bytes", std::to_string(most))
        .put("mount/memory/" + group + "memory.usage_in_bytes", std::to_string(now));
  }
  Machine& put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << '\n';
    return *this;
  }
  AvailableMemory memory() const { return available_memory(root_ / "proc", root_ / "mount"); }
  int64_t bytes() const { return memory().bytes; }

 private:
  fs::path root_;
};

TEST(AvailableMemory, IsTheKernelsWithoutGroupLimits) {
  EXPECT_EQ(Machine().bytes(), 8192 * kMiB);
  EXPECT_EQ(Machine().groups("0::/a").version2("a/", "max", kMiB).bytes(), 8192 * kMiB);
  EXPECT_EQ(Machine().groups("4:memory:/a").version1("a/", 0x7ffffffffffff000, kMiB).bytes(), 8192 * kMiB);
}

TEST(AvailableMemory, IsTheLeastThatAGroupAndThoseAboveItLeave) {
  Machine m;
  m.groups("0::/a/b").version2("a/b/", std::to_string(900 * kMiB), 100 * kMiB);
  EXPECT_EQ(m.bytes(), 800 * kMiB);
  m.version2("a/", std::to_string(600 * kMiB), 100 * kMiB);
  EXPECT_EQ(m.bytes(), 500 * kMiB);
  EXPECT_TRUE(m.memory().source.ends_with("a/memory.max")) << m.memory().source;
  m.version2("", std::to_string(50 * kMiB), 60 * kMiB);  // a container's own group is the mount
  EXPECT_EQ(m.bytes(), 0);
}

TEST(AvailableMemory, PagesOfFilesAreFree) {
  Machine m;
  m.groups("0::/a").version2("a/", std::to_string(300 * kMiB), 200 * kMiB);
  m.put("mount/a/memory.stat",
        "anon 104857600\nfile 104857600\ninactive_file 31457280\nactive_file 20971520");
  EXPECT_EQ(m.bytes(), 150 * kMiB);
}

// The counters change between two reads.
TEST(AvailableMemory, PagesOfFilesBeyondTheUsageOverflowNoMissingLimit) {
  Machine m;
  m.groups("4:memory:/a").version1("a/", 0x7ffffffffffff000, kMiB);
  m.put("mount/memory/a/memory.stat", "total_inactive_file 31457280\ntotal_active_file 20971520");
  EXPECT_EQ(m.bytes(), 8192 * kMiB);
}

// Machines that mount both versions use version 1 for memory limits.
TEST(AvailableMemory, IsReadFromGroupsOfVersion1) {
  Machine m;
  m.groups("9:name=systemd:/\n4:memory:/slurm/job\n1:cpu,cpuacct:/\n0::/");
  m.version1("slurm/job/", 400 * kMiB, 100 * kMiB);
  EXPECT_EQ(m.bytes(), 300 * kMiB);
  EXPECT_TRUE(m.memory().source.ends_with("job/memory.limit_in_bytes")) << m.memory().source;
  m.put("mount/memory/slurm/job/memory.stat",
        "inactive_file 1048576\ntotal_inactive_file 31457280\ntotal_active_file 20971520");
  EXPECT_EQ(m.bytes(), 350 * kMiB);
  m.version1("slurm/", 200 * kMiB, 100 * kMiB);
  EXPECT_EQ(m.bytes(), 100 * kMiB);
}

}  // namespace
}  // namespace cleave::plan

#include "launcher/memory_policy.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace cleave::launcher {
namespace {

// Nodes of a mask; the kernel supports at most this many, and rejects a shorter mask in get_mempolicy().
constexpr int kNodes = 1024;
constexpr int kBits = 8 * int(sizeof(unsigned long));

struct Policy {
  int mode = -1;  // -1: unknown
  unsigned long nodes[kNodes / kBits] = {};
};

Policy policy_of_thread() {
  Policy p;
  if (syscall(SYS_get_mempolicy, &p.mode, p.nodes, kNodes, nullptr, 0) != 0) p.mode = -1;
  return p;
}

}  // namespace

MemoryPolicy memory_policy() {
  const int mode = policy_of_thread().mode;
  return mode < 0 ? MemoryPolicy::blocked : mode == MPOL_DEFAULT ? MemoryPolicy::unset : MemoryPolicy::set;
}

bool prefer_memory_of(int node) {
  if (node < 0 || node >= kNodes) return false;
  unsigned long nodes[kNodes / kBits] = {};
  nodes[node / kBits] = 1UL << (node % kBits);
  // The kernel ignores the last bit of the length.
  return syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes, kNodes + 1) == 0;
}

int preferred_memory_node() {
  const Policy p = policy_of_thread();
  if (p.mode != MPOL_PREFERRED) return -1;
  for (int node = 0; node < kNodes; ++node)
    if (p.nodes[node / kBits] >> (node % kBits) & 1) return node;
  return -1;
}

}  // namespace cleave::launcher

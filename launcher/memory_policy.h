// The kernel's memory policy of this thread, which exec and new threads inherit. Plain system calls, so that
// libnuma is not needed.
#pragma once

namespace cleave::launcher {

enum class MemoryPolicy {
  unset,    // memory is in the node of the core that uses it first
  set,      // by numactl, a batch system or prefer_memory_of()
  blocked,  // the kernel or the container forbids the calls
};
MemoryPolicy memory_policy();

// Prefers memory of a NUMA node; if it is full, the kernel uses other nodes. Returns false if the kernel
// rejects the call or if node < 0. Async-signal-safe.
bool prefer_memory_of(int node);

// The node of prefer_memory_of(); -1 for another policy.
int preferred_memory_node();

}  // namespace cleave::launcher

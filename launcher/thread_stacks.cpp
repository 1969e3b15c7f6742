#include "launcher/thread_stacks.h"

#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>

namespace cleave::launcher {
namespace {

constexpr int kAsk = SIGURG;
constexpr int kWaits = 500;  // a millisecond each

// Handlers write here, so it is never destroyed or moved. An answer to an earlier question is dropped.
std::array<ThreadStacks::Stack, ThreadStacks::kThreads> stacks;
std::atomic<int> question = 0;
struct sigaction before {};

// Address of the interrupted instruction; null if unknown.
void* interrupted_at(const void* context) {
  if (!context) return nullptr;
  const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return reinterpret_cast<void*>(machine.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<void*>(machine.pc);
#else
  (void)machine;
  return nullptr;
#endif
}

void take(ThreadStacks::Stack& stack, const void* context) {
  int count = backtrace(stack.addresses, ThreadStacks::kFrames);
  void** const end = stack.addresses + count;
  void** const first = std::find(stack.addresses, end, interrupted_at(context));
  if (first != end) count = int(std::copy(first, end, stack.addresses) - stack.addresses);
  stack.frames.store(count, std::memory_order_release);
}

void answer(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  if (info->si_code == SI_QUEUE && info->si_pid == getpid()) {
    const int asked = question.load(), slot = info->si_value.sival_int % ThreadStacks::kThreads;
    if (info->si_value.sival_int / ThreadStacks::kThreads == asked) take(stacks[size_t(slot)], context);
  } else if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  }
  errno = error;
}

void ask(int tid, int slot) {
  siginfo_t info{};
  info.si_signo = kAsk;
  info.si_code = SI_QUEUE;
  info.si_pid = getpid();
  info.si_uid = getuid();
  info.si_value.sival_int = question.load() * ThreadStacks::kThreads + slot;
  syscall(SYS_rt_tgsigqueueinfo, getpid(), tid, kAsk, &info);
}

// Fills the table with the threads of this process, the calling one first. opendir() would allocate.
int list_threads() {
  const int own = int(syscall(SYS_gettid));
  int count = 0;
  stacks[size_t(count++)].tid = own;
  const int folder = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  alignas(8) char entries[4096];
  for (long n = 0; folder >= 0 && (n = syscall(SYS_getdents64, folder, entries, sizeof(entries))) > 0;)
    for (long at = 0; at < n;) {
      constexpr long kLength = 16, kName = 19;  // offsets in struct linux_dirent64
      const int tid = std::atoi(entries + at + kName);
      if (tid > 0 && tid != own && count < ThreadStacks::kThreads) stacks[size_t(count++)].tid = tid;
      at += *reinterpret_cast<const unsigned short*>(entries + at + kLength);
    }
  if (folder >= 0) close(folder);
  return count;
}

}  // namespace

void ThreadStacks::install() {
  static std::atomic<bool> installed = false;
  if (installed.exchange(true)) return;
  void* frames[2];
  backtrace(frames, 2);  // loads the unwinder now
  struct sigaction action {};
  action.sa_sigaction = answer;
  action.sa_flags = SA_RESTART | SA_SIGINFO | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  sigaction(kAsk, &action, &before);
}

std::span<ThreadStacks::Stack> ThreadStacks::collect(const void* context) {
  question.store((question.load() + 1) % 1'000'000);
  for (Stack& s : stacks) s.frames.store(0);
  const int count = list_threads();
  for (int i = 1; i < count; ++i) ask(stacks[size_t(i)].tid, i);
  take(stacks[0], context);
  const auto answered = [&] {
    return std::all_of(stacks.begin(), stacks.begin() + count, [](const Stack& s) { return s.frames > 0; });
  };
  const timespec millisecond{0, 1'000'000};
  for (int wait = 0; wait < kWaits && !answered(); ++wait) nanosleep(&millisecond, nullptr);
  return {stacks.data(), size_t(count)};
}

}  // namespace cleave::launcher

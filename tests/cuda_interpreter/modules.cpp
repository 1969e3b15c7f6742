#include "tests/cuda_interpreter/modules.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "tests/cuda_interpreter/ptx.h"

namespace interpreter {
namespace {

// The container format as cuobjdump shows it: a header, then entries with their own headers.
struct Wrapper {
  uint32_t magic, version;
  const std::byte* data;
  const void* unused;
};
struct Container {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;
};
struct Entry {
  uint16_t kind, version;  // kind 1 is PTX
  uint32_t header_bytes;
  uint64_t bytes;
  uint32_t compressed_bytes, unused;
  uint16_t minor, major;
  uint32_t architecture;
};
constexpr uint32_t kWrapper = 0x466243b1, kContainer = 0xba55ed50;
constexpr uint16_t kPtx = 1;

struct Binary {
  const std::byte* data;
  std::unique_ptr<Module> module;
};

struct Registered {
  Binary* binary;
  std::string name;
  Function function;
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, Registered> kernels;
};
Registry& registry() {
  static Registry* all = new Registry;
  return *all;
}

std::string text_of(const std::byte* data) {
  Container whole;
  std::memcpy(&whole, data, sizeof whole);
  if (whole.magic != kContainer) throw Defect("a container of kernels that the interpreter does not know");
  for (size_t at = whole.header_bytes; at < whole.header_bytes + whole.bytes;) {
    Entry entry;
    std::memcpy(&entry, data + at, sizeof entry);
    const char* text = reinterpret_cast<const char*>(data + at + entry.header_bytes);
    if (entry.kind == kPtx) {
      if (entry.compressed_bytes) throw Defect("the PTX is compressed: nvcc wants --no-compress");
      return std::string(text, strnlen(text, entry.bytes));
    }
    at += entry.header_bytes + entry.bytes;
  }
  throw Defect("no PTX: nvcc wants code=compute_90a");
}

// Lists the kernels of the program, with those that never ran. All ranks write to one file.
void list_kernels() {
  std::string text;
  {
    std::lock_guard lock(registry().mutex);
    for (const auto& [function, r] : registry().kernels)
      text += (r.function.kernel ? "decoded " : "unused ") + r.name + "\n";
  }
  const int file =
      open(std::getenv("CUDA_INTERPRETER_KERNELS"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0 || write(file, text.data(), text.size()) < 0) std::perror("CUDA_INTERPRETER_KERNELS");
  close(file);
}

}  // namespace

void** register_module(const void* fat_binary) {
  const auto* wrapper = static_cast<const Wrapper*>(fat_binary);
  return reinterpret_cast<void**>(new Binary{wrapper->magic == kWrapper ? wrapper->data : nullptr, nullptr});
}

void register_kernel(void** module, const void* host_function, const char* name) {
  if (std::getenv("CUDA_INTERPRETER_KERNELS")) {
    static const int once = std::atexit(list_kernels);
    (void)once;
  }
  std::lock_guard lock(registry().mutex);
  registry().kernels[host_function] = {reinterpret_cast<Binary*>(module), name, {}};
}

Function* find_function(const void* host_function) {
  std::lock_guard lock(registry().mutex);
  const auto at = registry().kernels.find(host_function);
  if (at == registry().kernels.end()) return nullptr;
  Registered& r = at->second;
  if (!r.function.kernel) {
    if (!r.binary->module) r.binary->module = std::make_unique<Module>(text_of(r.binary->data));
    if (!r.binary->module->has(r.name)) throw Defect("the PTX lacks the kernel " + r.name);
    r.function.kernel = &r.binary->module->kernel(r.name);
  }
  return &r.function;
}

}  // namespace interpreter

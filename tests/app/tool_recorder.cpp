// Replaces Nsight: a library for NVTX_INJECTION64_PATH that writes each range, when it begins, as
// "<depth> <name>" to the file TOOL_RECORDER, and "end" if more ranges end than began.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace {

std::mutex mutex;
thread_local int depth = 0;

FILE* file() {
  static FILE* const opened = std::fopen(std::getenv("TOOL_RECORDER"), "a");
  return opened;
}

nvtxDomainHandle_t NVTX_API create(const char*) {
  static int domain = 0;
  return reinterpret_cast<nvtxDomainHandle_t>(&domain);
}

int NVTX_API push(nvtxDomainHandle_t, const nvtxEventAttributes_t* event) {
  const std::lock_guard lock(mutex);
  std::fprintf(file(), "%d %s\n", depth, event->message.ascii);
  std::fflush(file());
  return depth++;
}

int NVTX_API pop(nvtxDomainHandle_t) {
  if (--depth < 0) std::fputs("end\n", file());
  return depth;
}

template <class Function>
void set(NvtxFunctionTable table, int id, Function* function) {
  *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t tables) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(tables(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  set(table, NVTX_CBID_CORE2_DomainCreateA, create);
  set(table, NVTX_CBID_CORE2_DomainRangePushEx, push);
  set(table, NVTX_CBID_CORE2_DomainRangePop, pop);
  return 1;
}

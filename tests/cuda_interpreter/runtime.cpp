// The functions of the CUDA runtime and driver that Cleave and CUB call, over streams.h ("CUDA
// Runtime API", "CUDA Driver API"). Events with undefined time happen late.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/cuda_interpreter/device_memory.h"
#include "tests/cuda_interpreter/modules.h"
#include "tests/cuda_interpreter/runtime_calls.h"
#include "tests/cuda_interpreter/settings.h"
#include "tests/cuda_interpreter/streams.h"

using namespace interpreter;

namespace {

constexpr int kSharedOfBlock = 48 << 10, kGreatestPriority = -5;

// Returns the shared memory limit of a block that requests it, in bytes.
int most_shared() {
  static const int bytes = int(setting("SHARED_KIB", 227)) << 10;
  return bytes;
}

constexpr std::string_view kGpuName = "GPU-interpreted-", kSliceName = "MIG-interpreted-";

// Number of a GPU of the machine that an entry of CUDA_VISIBLE_DEVICES names; -1 if none.
int number_of(std::string_view entry) {
  for (const std::string_view name : {kGpuName, kSliceName})
    if (entry.starts_with(name)) entry.remove_prefix(name.size());
  int number = -1;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), number);
  const bool whole = error == std::errc() && end == entry.data() + entry.size();
  return whole && number < setting("GPUS", 1) ? number : -1;
}

// GPUs that the process sees, as CUDA reads its list: up to the first unknown entry, and one slice at most.
struct Visible {
  Visible() {
    const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
    if (!list)
      for (int i = 0; i < setting("GPUS", 1); ++i) numbers.push_back(i);
    for (std::string_view rest = list ? list : ""; !rest.empty() && !slice;) {
      const std::string_view entry = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
      const int number = number_of(entry);
      if (number < 0) break;
      numbers.push_back(number), slice = entry.starts_with(kSliceName);
    }
  }
  std::vector<int> numbers;
  bool slice = false;
};

const Visible& visible() {
  static const Visible once;
  return once;
}

int gpus() { return int(visible().numbers.size()); }

int driver_version() {
  static const int version = int(setting("DRIVER", CUDART_VERSION));
  return version;
}

int capability() {
  static const int number = int(setting("CAPABILITY", 90));
  return number;
}

// A machine without a GPU may have the real NCCL.
[[gnu::constructor]] void name_nccl() { setenv("CLEAVE_NCCL", NCCL_STANDIN, 0); }

// CUDA_MODULE_LOADING at the start of CUDA: loads a kernel at its first use.
bool loads_lazily() {
  static const char* const said = std::getenv("CUDA_MODULE_LOADING");
  static const bool lazily = !said || std::string_view(said) != "EAGER";
  return lazily;
}

// The first use of a kernel may then wait for the whole GPU.
void use(const Function* f) {
  static std::mutex mutex;
  static std::set<const Function*> loaded;
  if (!loads_lazily()) return;
  {
    const std::lock_guard lock(mutex);
    if (!loaded.insert(f).second) return;
  }
  failure_of("kernel_loaded_lazily");
  wait_for_gpu();
}

CUresult loading_mode(CUmoduleLoadingMode* mode) {
  *mode = loads_lazily() ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
  return CUDA_SUCCESS;
}

Event* event_of(cudaEvent_t e) { return reinterpret_cast<Event*>(e); }

cudaError_t finished(bool well) { return well ? cudaSuccess : ended(cudaErrorLaunchFailure); }

cudaError_t launch(const void* function, dim3 grid, dim3 block, void** args, size_t shared, cudaStream_t s) {
  InDriver in_driver;
  try {
    const Function* f = find_function(function);
    if (!f) return ended(cudaErrorInvalidDeviceFunction);
    use(f);
    const Kernel& k = *f->kernel;
    const uint64_t threads = uint64_t(block.x) * block.y * block.z;
    if (!grid.x || !grid.y || !grid.z || !threads || grid.x > 0x7fffffff || grid.y > 65535 ||
        grid.z > 65535 || block.z > 64 || threads > 1024)
      return refused(k.name + ": a grid or block that no GPU takes", cudaErrorInvalidConfiguration);
    if (threads > uint64_t(k.max_threads))
      return refused(k.name + ": more threads than __launch_bounds__ says", cudaErrorLaunchOutOfResources);
    if (int(shared) > std::max(f->dynamic_shared, kSharedOfBlock - int(k.shared_bytes)) ||
        int(shared) + int(k.shared_bytes) > most_shared())
      return refused(k.name + ": more shared memory than it was allowed", cudaErrorInvalidValue);
    Launch l{&k, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, uint32_t(shared), {}};
    l.params.resize(k.param_bytes);
    for (size_t i = 0; i < k.params.size(); ++i)
      std::memcpy(l.params.data() + k.params[i].at, args[i], k.params[i].bytes);
    return guarded([&] {
      streams().give(stream_of(s),
                     {k.name, [l](std::mt19937_64& random) { execute(l, random); }, {}, {}, &k});
    });
  } catch (const Defect& e) {
    return refused(e.what(), cudaErrorInvalidKernelImage);
  }
}

struct Graph {
  std::shared_ptr<Nodes> nodes;
};
struct Executable {
  std::shared_ptr<const Nodes> nodes;
};

struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

CUresult wait_value(CUstream s, CUdeviceptr at, cuuint32_t value, unsigned int flags) {
  InDriver in_driver;
  if (const int failure = failure_of("cuStreamWaitValue32")) return CUresult(failure);
  if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_NOT_SUPPORTED;
  auto* word = reinterpret_cast<uint32_t*>(at);
  if (!device_memory().holds(word, 4)) return CUDA_ERROR_INVALID_VALUE;
  const auto ready = [=] {
    return int32_t(std::atomic_ref(*word).load(std::memory_order_acquire) - value) >= 0;
  };
  return guarded([&] {
           streams().give(stream_of(s), {"a wait for the word at " + std::to_string(at) + " to come to " +
                                             std::to_string(value),
                                         {},
                                         {},
                                         ready,
                                         "wait"});
         }) == cudaSuccess
             ? CUDA_SUCCESS
             : CUDA_ERROR_UNKNOWN;
}
CUresult write_value(CUstream s, CUdeviceptr at, cuuint32_t value, unsigned int) {
  InDriver in_driver;
  if (const int failure = failure_of("cuStreamWriteValue32")) return CUresult(failure);
  auto* word = reinterpret_cast<uint32_t*>(at);
  if (!device_memory().holds(word, 4)) return CUDA_ERROR_INVALID_VALUE;
  const auto run = [=](std::mt19937_64&) { std::atomic_ref(*word).store(value, std::memory_order_release); };
  return guarded([&] {
           streams().give(stream_of(s), {"a word", run, {}, {}, "word"});
         }) == cudaSuccess
             ? CUDA_SUCCESS
             : CUDA_ERROR_UNKNOWN;
}

const std::pair<cudaError_t, const char*> kErrors[] = {
    {cudaSuccess, "cudaSuccess"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure"},
    {cudaErrorNotReady, "cudaErrorNotReady"},
    {cudaErrorNoDevice, "cudaErrorNoDevice"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction"},
    {cudaErrorInvalidKernelImage, "cudaErrorInvalidKernelImage"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent"},
    {cudaErrorGraphExecUpdateFailure, "cudaErrorGraphExecUpdateFailure"},
    {cudaErrorDeviceUninitialized, "cudaErrorDeviceUninitialized"},
    {cudaErrorMapBufferObjectFailed, "cudaErrorMapBufferObjectFailed"},
    {cudaErrorNotSupported, "cudaErrorNotSupported"}};

}  // namespace

int interpreter::gpu_of_thread() { return current_gpu; }

extern "C" {

// --- errors, devices

cudaError_t cudaGetLastError() {
  if (!streams().lost().empty()) return cudaErrorLaunchFailure;
  return std::exchange(last_failure, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() { return streams().lost().empty() ? last_failure : cudaErrorLaunchFailure; }
const char* cudaGetErrorName(cudaError_t error) {
  for (const auto& [value, name] : kErrors)
    if (value == error) return name;
  return "an error of CUDA";
}
const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorLaunchFailure && !streams().lost().empty()) return streams().lost().c_str();
  return cudaGetErrorName(error);
}
cudaError_t cudaDriverGetVersion(int* version) {
  CALL_OF_RUNTIME;
  return *version = driver_version(), cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  CALL_OF_RUNTIME;
  return *version = CUDART_VERSION, cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  CALL_OF_RUNTIME;
  loads_lazily();
  *count = 0;
  if (driver_version() < CUDART_VERSION) return ended(cudaErrorInsufficientDriver);
  *count = gpus();
  return *count ? cudaSuccess : ended(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
  CALL_OF_RUNTIME;
  loads_lazily();
  if (device < 0 || device >= gpus()) return ended(cudaErrorInvalidDevice);
  return current_gpu = device, cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  CALL_OF_RUNTIME;
  return *device = current_gpu, cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  CALL_OF_RUNTIME;
  if (device < 0 || device >= gpus()) return ended(cudaErrorInvalidDevice);
  std::memset(p, 0, sizeof *p);
  std::snprintf(p->name, sizeof p->name, "an interpreter of PTX%s", visible().slice ? " MIG 1g.8gb" : "");
  p->major = capability() / 10, p->minor = capability() % 10,
  p->multiProcessorCount = int(setting("MULTIPROCESSORS", 8));
  p->totalGlobalMem = device_memory().total();
  p->warpSize = 32, p->maxThreadsPerBlock = 1024, p->sharedMemPerBlockOptin = most_shared();
  p->sharedMemPerBlock = kSharedOfBlock;
  std::memset(&p->uuid, 'i', sizeof p->uuid);
  p->uuid.bytes[1] = char(visible().numbers[size_t(device)] + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int) {
  CALL_OF_RUNTIME;
  switch (what) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = capability() / 10;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = capability() % 10;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = int(setting("MULTIPROCESSORS", 8));
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = most_shared();
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = kSharedOfBlock;
      break;
    case cudaDevAttrMaxGridDimX:
      *value = 0x7fffffff;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    default:
      return refused("an attribute of the GPU that the interpreter does not know: " + std::to_string(what),
                     cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  CALL_OF_RUNTIME;
  return *can = 1, cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  CALL_OF_RUNTIME;
  in_driver.leave();
  return finished(streams().finish_device(current_gpu));
}

// --- streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned int) {
  CALL_OF_RUNTIME;
  return *s = reinterpret_cast<cudaStream_t>(streams().make(current_gpu)), cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  CALL_OF_RUNTIME;
  return *least = 0, *greatest = kGreatestPriority, cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned int flags, int priority) {
  CALL_OF_RUNTIME;
  if (priority > 0 || priority < kGreatestPriority)  // a GPU would use the nearest valid one
    return refused("a stream of priority " + std::to_string(priority), cudaErrorInvalidValue);
  return cudaStreamCreateWithFlags(s, flags);
}
cudaError_t cudaStreamCreate(cudaStream_t* s) {
  CALL_OF_RUNTIME;
  return cudaStreamCreateWithFlags(s, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  CALL_OF_RUNTIME;
  return streams().close(stream_of(s)), cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  CALL_OF_RUNTIME;
  Stream* stream = stream_of(s);
  if (stream->capture) return stream->capture->broken = true, ended(cudaErrorStreamCaptureUnsupported);
  in_driver.leave();
  return finished(streams().finish(stream));
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
  CALL_OF_RUNTIME;
  if (!streams().lost().empty()) return ended(cudaErrorLaunchFailure);
  return streams().idle(stream_of(s)) ? cudaSuccess : ended(cudaErrorNotReady);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned int) {
  CALL_OF_RUNTIME;
  return guarded([&] { streams().wait(stream_of(s), *event_of(e)); }, cudaErrorStreamCaptureIsolation);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status) {
  CALL_OF_RUNTIME;
  *status = stream_of(s)->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void* data) {
  CALL_OF_RUNTIME;
  return guarded([&] {
    streams().give(stream_of(s), {"a function of the host", {}, [f, data] { f(data); }, {}, "host"});
  });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned int) {
  CALL_OF_RUNTIME;
  auto* event = new Event;
  event->device = current_gpu;
  return *e = reinterpret_cast<cudaEvent_t>(event), cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* e) {
  CALL_OF_RUNTIME;
  return cudaEventCreateWithFlags(e, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  CALL_OF_RUNTIME;
  return delete event_of(e), cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  CALL_OF_RUNTIME;
  return guarded(
      [&] {
        if (event_of(e)->device != stream_of(s)->device)
          throw Defect("an event of cuda:" + std::to_string(event_of(e)->device) +
                       " is recorded in a stream of cuda:" + std::to_string(stream_of(s)->device));
        streams().record(*event_of(e), stream_of(s));
      },
      cudaErrorInvalidResourceHandle);
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  CALL_OF_RUNTIME;
  if (event_of(e)->capture) return ended(cudaErrorCapturedEvent);
  if (!streams().lost().empty()) return ended(cudaErrorLaunchFailure);
  return streams().reached(*event_of(e)->point) ? cudaSuccess : ended(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  CALL_OF_RUNTIME;
  if (event_of(e)->capture) return ended(cudaErrorCapturedEvent);
  in_driver.leave();
  return finished(streams().finish(event_of(e)->point));
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  CALL_OF_RUNTIME;
  const auto &a = event_of(from)->point, &b = event_of(to)->point;
  if (!streams().reached(*a) || !streams().reached(*b)) return ended(cudaErrorNotReady);
  return *ms = float(b->when - a->when), cudaSuccess;
}

// --- graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  CALL_OF_RUNTIME;
  if (!s) return cudaErrorStreamCaptureUnsupported;
  return guarded([&] { streams().begin_capture(stream_of(s)); });
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  CALL_OF_RUNTIME;
  *graph = nullptr;
  return guarded(
      [&] { *graph = reinterpret_cast<cudaGraph_t>(new Graph{streams().end_capture(stream_of(s))}); },
      cudaErrorStreamCaptureInvalidated);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* e, cudaGraph_t graph, unsigned long long) {
  CALL_OF_RUNTIME;
  *e = reinterpret_cast<cudaGraphExec_t>(new Executable{reinterpret_cast<Graph*>(graph)->nodes});
  return cudaSuccess;
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t e, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) {
  CALL_OF_RUNTIME;
  auto& old = reinterpret_cast<Executable*>(e)->nodes;
  const std::shared_ptr<const Nodes> fresh = reinterpret_cast<Graph*>(graph)->nodes;
  bool alike = old->size() == fresh->size();
  for (size_t i = 0; alike && i < old->size(); ++i)
    alike = (*old)[i].after == (*fresh)[i].after && (*old)[i].task.like == (*fresh)[i].task.like;
  if (info) std::memset(info, 0, sizeof *info);
  if (!alike) return ended(cudaErrorGraphExecUpdateFailure);
  return old = fresh, cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s) {
  CALL_OF_RUNTIME;
  return guarded([&] { streams().give_graph(stream_of(s), reinterpret_cast<Executable*>(e)->nodes); });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  CALL_OF_RUNTIME;
  return delete reinterpret_cast<Graph*>(graph), cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e) {
  CALL_OF_RUNTIME;
  return delete reinterpret_cast<Executable*>(e), cudaSuccess;
}

// --- kernels

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute what, int value) {
  CALL_OF_RUNTIME;
  return guarded([&] {
    Function* f = find_function(function);
    if (!f) throw Defect("an attribute of a kernel that is not known");
    use(f);
    if (what == cudaFuncAttributeMaxDynamicSharedMemorySize) {
      if (value + int(f->kernel->shared_bytes) > most_shared())
        throw Defect("more shared memory than a block can have");
      f->dynamic_shared = value;
    }
  });
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void* function) {
  CALL_OF_RUNTIME;
  std::memset(a, 0, sizeof *a);
  return guarded([&] {
    const Function* f = find_function(function);
    if (!f) throw Defect("attributes of a kernel that is not known");
    use(f);
    a->ptxVersion = a->binaryVersion = 90, a->maxThreadsPerBlock = f->kernel->max_threads;
    a->sharedSizeBytes = f->kernel->shared_bytes, a->numRegs = 64;
  });
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int threads,
                                                                   size_t, unsigned int) {
  CALL_OF_RUNTIME;
  return *blocks = std::max(1, 2048 / std::max(1, threads)), cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* f, int threads,
                                                          size_t shared) {
  CALL_OF_RUNTIME;
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, threads, shared, 0);
}
cudaError_t cudaLaunchKernel(const void* f, dim3 grid, dim3 block, void** args, size_t shared,
                             cudaStream_t s) {
  CALL_OF_RUNTIME;
  return launch(f, grid, block, args, shared, s);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* f, void** args) {
  CALL_OF_RUNTIME;
  return launch(f, c->gridDim, c->blockDim, args, c->dynamicSmemBytes, c->stream);
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* f) {
  return *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(f)), cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args, size_t shared,
                               cudaStream_t s) {
  return launch(reinterpret_cast<const void*>(kernel), grid, block, args, shared, s);
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* s) {
  return configurations.push_back({grid, block, shared, s}), 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* s) {
  const Configuration c = configurations.back();
  configurations.pop_back();
  *grid = c.grid, *block = c.block, *shared = c.shared, *static_cast<cudaStream_t*>(s) = c.stream;
  return cudaSuccess;
}
void** __cudaRegisterFatBinary(void* binary) { return register_module(binary); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** module, const char* host, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  register_kernel(module, host, name);
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) { return 0; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** f, unsigned int, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  CALL_OF_RUNTIME;
  const std::string_view wanted = name;
  *f = wanted == "cuStreamWaitValue32"      ? reinterpret_cast<void*>(&wait_value)
       : wanted == "cuStreamWriteValue32"   ? reinterpret_cast<void*>(&write_value)
       : wanted == "cuModuleGetLoadingMode" ? reinterpret_cast<void*>(&loading_mode)
                                            : nullptr;
  *result = *f ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // extern "C"

#include "device/graphs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>

#include "device/cuda/check.h"
#include "device/cuda/queue.h"

namespace cleave {
namespace {

// GPU time of work, read without blocking.
class Timing {
 public:
  explicit Timing(int device) : device_(device) {
    for (cudaEvent_t* event : {&begin_, &end_}) cuda_check(cudaEventCreate(event), "cudaEventCreate", device);
  }
  ~Timing() { cudaEventDestroy(begin_), cudaEventDestroy(end_); }
  Timing(const Timing&) = delete;
  Timing& operator=(const Timing&) = delete;

  void begin(cudaStream_t stream) { cuda_check(cudaEventRecord(begin_, stream), "cudaEventRecord", device_); }
  void end(cudaStream_t stream) { cuda_check(cudaEventRecord(end_, stream), "cudaEventRecord", device_); }
  // Milliseconds; empty while the work is running.
  std::optional<float> taken() const {
    float ms = 0;
    const cudaError_t asked = cudaEventElapsedTime(&ms, begin_, end_);
    if (asked == cudaSuccess) return ms;
    cudaGetLastError();
    if (asked != cudaErrorNotReady) cuda_check(asked, "cudaEventElapsedTime", device_);
    return std::nullopt;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  int device_;
};

// Decides for one key if a graph is faster: after one warm-up of each way, kTimes alternating measurements.
class Comparison {
 public:
  enum class Way { plain, graph };
  struct Next {
    Way way;
    Timing* timing = nullptr;  // measures this run
  };

  Next next(Graphs::Use use, int device) {
    if (round_ == 0) return ++round_, Next{Way::plain};
    if (use == Graphs::Use::always) return {Way::graph};
    if (chosen_) return {*chosen_};
    if (round_ == 1) return ++round_, Next{Way::graph};
    if (timings_.size() == 2 * kTimes) {
      decide();
      return {chosen_.value_or(Way::plain)};
    }
    const Way way = timings_.size() % 2 ? Way::graph : Way::plain;
    return {way, timings_.emplace_back(std::make_unique<Timing>(device)).get()};
  }

 private:
  static constexpr size_t kTimes = 3;

  void decide() {
    std::array<float, 2> best{INFINITY, INFINITY};
    for (size_t i = 0; i < timings_.size(); ++i) {
      const std::optional<float> taken = timings_[i]->taken();
      if (!taken) return;
      best[i % 2] = std::min(best[i % 2], *taken);
    }
    chosen_ = best[1] < best[0] ? Way::graph : Way::plain;
    timings_.clear();
  }

  int round_ = 0;
  std::vector<std::unique_ptr<Timing>> timings_;
  std::optional<Way> chosen_;
};

class CudaGraphs final : public Graphs {
 public:
  CudaGraphs(const std::vector<Stream*>& streams, Use use) : use_(use) {
    for (Stream* s : streams) queues_.push_back(&cuda_queue(*s));
    first_ = queues_.front()->use(), device_ = queues_.front()->device();
  }
  ~CudaGraphs() override {
    cudaStreamSynchronize(first_);
    for (const auto& [key, known] : known_)
      if (known.graph) cudaGraphExecDestroy(known.graph);
  }

  void run(const Key& key, const std::function<void()>& work) override {
    Known& known = known_[key];
    const Comparison::Next next = known.comparison.next(use_, device_);
    if (next.timing) next.timing->begin(first_);
    if (next.way == Comparison::Way::plain)
      work();
    else
      launch(known.graph, work);
    if (next.timing) join(), next.timing->end(first_);
  }

 private:
  struct Known {
    Comparison comparison;
    cudaGraphExec_t graph = nullptr;
  };

  void check(cudaError_t error, const char* call) const { cuda_check(error, call, device_); }

  // Makes later work of the first stream wait for the others.
  void join() {
    for (CudaQueue* queue : queues_)
      if (queue != queues_.front()) queues_.front()->wait(queue->record());
  }
  void fork() {
    const Event begin = queues_.front()->record();
    for (CudaQueue* queue : queues_)
      if (queue != queues_.front()) queue->wait(begin);
  }

  void launch(cudaGraphExec_t& known, const std::function<void()>& work) {
    const auto capture = std::make_shared<CudaPoint::Capture>();
    for (CudaQueue* queue : queues_) capture->streams.push_back(queue->use());
    join();
    // Relaxed, because driver calls of other threads and libraries are independent of these streams.
    check(cudaStreamBeginCapture(first_, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
    try {
      for (CudaQueue* queue : queues_) queue->set_capture(capture);
      fork();
      work();
      join();
      const Captured graph = end_capture();
      take_over(known, graph.get());
      check(cudaGraphLaunch(known, first_), "cudaGraphLaunch");
    } catch (...) {
      give_up(*capture);
      throw;
    }
    close(*capture);
  }

  struct Destroy {
    void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
  };
  using Captured = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, Destroy>;

  Captured end_capture() {
    cudaGraph_t graph = nullptr;
    const cudaError_t captured = cudaStreamEndCapture(first_, &graph);
    require(
        captured == cudaSuccess, Exit::internal,
        "cuda:{}: work could not be captured as a CUDA graph: {} ({}); set \"cleave\": {{\"cuda_graphs\": "
        "\"off\"}}",
        device_, cudaGetErrorString(captured), cudaGetErrorName(captured));
    return Captured(graph);
  }

  // Ends the capture after a failure; must not replace the original error.
  void give_up(CudaPoint::Capture& capture) {
    try {
      end_capture();
    } catch (const Error&) {
      cudaGetLastError();
    }
    try {
      close(capture);
    } catch (const Error&) {
    }
  }

  // Updates the executable graph to `graph`, in place if the shapes are equal.
  void take_over(cudaGraphExec_t& known, cudaGraph_t graph) {
    cudaGraphExecUpdateResultInfo result;
    if (known && cudaGraphExecUpdate(known, graph, &result) == cudaSuccess) return;
    cudaGetLastError();
    if (known) {
      check(cudaStreamSynchronize(first_), "cudaStreamSynchronize");
      check(cudaGraphExecDestroy(std::exchange(known, nullptr)), "cudaGraphExecDestroy");
    }
    check(cudaGraphInstantiate(&known, graph, 0), "cudaGraphInstantiate");
  }

  // Orders the captured work before this point and later work after it.
  void close(CudaPoint::Capture& capture) {
    for (CudaQueue* queue : queues_) queue->set_capture(nullptr);
    capture.end = std::make_shared<CudaPoint>(queues_.front()->points());
    fork();
  }

  const Use use_;
  std::vector<CudaQueue*> queues_;
  cudaStream_t first_ = nullptr;
  int device_ = 0;
  std::map<Key, Known> known_;
};

}  // namespace

std::unique_ptr<Graphs> make_graphs(std::vector<Stream*> streams, Graphs::Use use) {
  return std::make_unique<CudaGraphs>(streams, use);
}

}  // namespace cleave

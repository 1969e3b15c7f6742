// cuDNN's graph interface: operations on tensors, which the library compiles into one kernel. libcudnn is
// loaded at run time, so a program starts without it. All failures throw Error(internal) with cuDNN's
// message.
#pragma once
#include <cudnn.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

namespace cleave::kernels::gpu {

// Reason why cuDNN is unusable in this process; empty if it is usable.
const std::string& cudnn_problem();
int cudnn_version();  // 91300 is 9.13.0; 0: not found

class CudnnHandle {
 public:
  CudnnHandle();  // for the current GPU
  ~CudnnHandle();
  CudnnHandle(const CudnnHandle&) = delete;
  CudnnHandle& operator=(const CudnnHandle&) = delete;
  cudnnHandle_t get() const { return handle_; }

 private:
  cudnnHandle_t handle_ = nullptr;
};

class CudnnDescriptor {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor();
  CudnnDescriptor(const CudnnDescriptor&) = delete;
  CudnnDescriptor& operator=(const CudnnDescriptor&) = delete;

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
           const void* values);
  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set(name, type, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& other) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, other.value_);
  }
  void finalize();
  cudnnBackendDescriptor_t get() const { return value_; }

 private:
  cudnnBackendDescriptor_t value_ = nullptr;
};

// The offset of an element is the sum of index times stride.
struct CudnnShape {
  std::array<int64_t, 4> dims, strides;
  int rank = 4;  // number of dims in use

  // Matrix as a batch of one, as cuDNN's product engines require.
  static CudnnShape matrix(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
    const int64_t whole = std::max(rows * row_stride, columns * column_stride);
    return {{1, rows, columns}, {whole, row_stride, column_stride}, 3};
  }
};

class CudnnGraph {
 public:
  using Tensor = std::shared_ptr<CudnnDescriptor>;

  // A tensor in memory with its name for execute(); a float from the host; a tensor inside the graph only.
  Tensor input(int64_t name, cudnnDataType_t type, const CudnnShape& shape);
  Tensor number(int64_t name);
  Tensor inside(cudnnDataType_t type, const CudnnShape& shape);

  Tensor matmul(Tensor a, Tensor b, Tensor c);
  // y = mode(x, b); select: y = t ? x : b. b and t may be null.
  Tensor pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor y, Tensor t = {});
  Tensor index(int64_t axis, Tensor x, Tensor y);
  Tensor reduce(cudnnReduceTensorOp_t how, Tensor x, Tensor y);
  Tensor reshape(Tensor x, Tensor y);

  // Finalizes the graph for the handle's GPU, or without a handle for the GPU described by `properties`.
  // Nothing can be added afterwards.
  void finish(cudnnHandle_t handle);
  // Engines proposed by heuristics, best first; some may not work.
  std::vector<Tensor> engines(const CudnnDescriptor* properties) const;

 private:
  Tensor tensor(int64_t name, cudnnDataType_t type, const CudnnShape& shape, bool inside, bool by_value);
  void add(Tensor operation);

  std::vector<Tensor> operations_, parts_;
  Tensor graph_;
  int64_t next_name_ = 1000;  // for tensors inside the graph
};

// A graph compiled for a GPU.
class CudnnPlan {
 public:
  // Uses the first engine that works; `properties` as above if the handle is null.
  CudnnPlan(std::shared_ptr<CudnnGraph> graph, cudnnHandle_t handle,
            const CudnnDescriptor* properties = nullptr);

  int64_t workspace_bytes() const { return workspace_bytes_; }
  struct Operand {
    int64_t name;
    const void* data;  // host memory for a number
  };
  // Enqueues the graph on the handle's stream.
  void execute(cudnnHandle_t handle, const std::vector<Operand>& operands, void* workspace) const;

 private:
  std::shared_ptr<CudnnGraph> graph_;
  CudnnGraph::Tensor engine_;
  std::unique_ptr<CudnnDescriptor> plan_;
  int64_t workspace_bytes_ = 0;
};

void cudnn_use_stream(cudnnHandle_t handle, cudaStream_t stream);

}  // namespace cleave::kernels::gpu

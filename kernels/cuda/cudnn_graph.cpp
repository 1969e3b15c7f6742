#include "kernels/cuda/cudnn_graph.h"

#include "core/error.h"
#include "device/cuda_library.h"

namespace cleave::kernels::gpu {
namespace {

struct Library {
  decltype(&cudnnGetErrorString) error_string;
  decltype(&cudnnGetLastErrorString) last_error;
  decltype(&cudnnCreate) create;
  decltype(&cudnnDestroy) destroy;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&cudnnBackendSetAttribute) set_attribute;
  decltype(&cudnnBackendGetAttribute) get_attribute;
  decltype(&cudnnBackendFinalize) finalize;
  decltype(&cudnnBackendExecute) execute;
  std::string problem;
  int version = 0;
};

Library load() {
  Library l{};
  CudaLibrary library(kCudnn);
  const auto find = [&](const char* name, auto& function) { library.find(name, function); };
  find("cudnnGetErrorString", l.error_string);
  find("cudnnGetLastErrorString", l.last_error), find("cudnnCreate", l.create),
      find("cudnnDestroy", l.destroy);
  find("cudnnSetStream", l.set_stream), find("cudnnBackendCreateDescriptor", l.create_descriptor);
  find("cudnnBackendDestroyDescriptor", l.destroy_descriptor);
  find("cudnnBackendSetAttribute", l.set_attribute), find("cudnnBackendGetAttribute", l.get_attribute);
  find("cudnnBackendFinalize", l.finalize), find("cudnnBackendExecute", l.execute);
  l.problem = library.problem(), l.version = library.version();
  return l;
}

// Stays loaded until the process exits.
const Library& library() {
  static const Library once = load();
  return once;
}

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char words[256] = {};
  library().last_error(words, sizeof words);
  fail(Exit::internal, "{}: {} {}", call, library().error_string(status), words);
}

constexpr cudnnDataType_t kFloat = CUDNN_DATA_FLOAT;

}  // namespace

const std::string& cudnn_problem() { return library().problem; }
int cudnn_version() { return library().version; }

CudnnHandle::CudnnHandle() { check(library().create(&handle_), "cudnnCreate"); }
CudnnHandle::~CudnnHandle() { library().destroy(handle_); }

void cudnn_use_stream(cudnnHandle_t handle, cudaStream_t stream) {
  check(library().set_stream(handle, stream), "cudnnSetStream");
}

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  check(library().create_descriptor(type, &value_), "cudnnBackendCreateDescriptor");
}
CudnnDescriptor::~CudnnDescriptor() { library().destroy_descriptor(value_); }

void CudnnDescriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                          const void* values) {
  check(library().set_attribute(value_, name, type, count, values), "cudnnBackendSetAttribute");
}
void CudnnDescriptor::finalize() { check(library().finalize(value_), "cudnnBackendFinalize"); }

CudnnGraph::Tensor CudnnGraph::tensor(int64_t name, cudnnDataType_t type, const CudnnShape& shape,
                                      bool inside, bool by_value) {
  auto t = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  t->set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  t->set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, shape.rank, shape.dims.data());
  t->set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, shape.rank, shape.strides.data());
  t->set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, name);
  t->set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t{16});
  t->set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, inside);
  t->set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value);
  t->finalize();
  parts_.push_back(t);
  return t;
}

CudnnGraph::Tensor CudnnGraph::input(int64_t name, cudnnDataType_t type, const CudnnShape& shape) {
  return tensor(name, type, shape, false, false);
}
CudnnGraph::Tensor CudnnGraph::number(int64_t name) {
  return tensor(name, kFloat, {{1, 1, 1, 1}, {1, 1, 1, 1}}, false, true);
}
CudnnGraph::Tensor CudnnGraph::inside(cudnnDataType_t type, const CudnnShape& shape) {
  return tensor(next_name_++, type, shape, true, false);
}

void CudnnGraph::add(Tensor operation) {
  operation->finalize();
  operations_.push_back(std::move(operation));
}

CudnnGraph::Tensor CudnnGraph::matmul(Tensor a, Tensor b, Tensor c) {
  auto how = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  how->set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, kFloat);
  how->finalize();
  parts_.push_back(how);
  auto op = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  op->set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, *a), op->set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, *b);
  op->set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, *c), op->set(CUDNN_ATTR_OPERATION_MATMUL_DESC, *how);
  add(op);
  return c;
}

CudnnGraph::Tensor CudnnGraph::pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor y, Tensor t) {
  auto how = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how->set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  how->set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE,
           mode == CUDNN_POINTWISE_CMP_GE ? CUDNN_DATA_BOOLEAN : kFloat);
  how->finalize();
  parts_.push_back(how);
  auto op = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op->set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, *how);
  op->set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *x), op->set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *y);
  if (b) op->set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  if (t) op->set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *t);
  add(op);
  return y;
}

CudnnGraph::Tensor CudnnGraph::index(int64_t axis, Tensor x, Tensor y) {
  auto how = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how->set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, CUDNN_POINTWISE_GEN_INDEX);
  how->set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, kFloat);
  how->set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  how->finalize();
  parts_.push_back(how);
  auto op = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op->set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, *how);
  op->set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *x), op->set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *y);
  add(op);
  return y;
}

CudnnGraph::Tensor CudnnGraph::reduce(cudnnReduceTensorOp_t kind, Tensor x, Tensor y) {
  auto how = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  how->set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, kind);
  how->set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, kFloat);
  how->finalize();
  parts_.push_back(how);
  auto op = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  op->set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, *x), op->set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, *y);
  op->set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, *how);
  add(op);
  return y;
}

CudnnGraph::Tensor CudnnGraph::reshape(Tensor x, Tensor y) {
  auto op = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  op->set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, *x), op->set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, *y);
  add(op);
  return y;
}

void CudnnGraph::finish(cudnnHandle_t handle) {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const Tensor& op : operations_) raw.push_back(op->get());
  graph_ = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph_->set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, int64_t(raw.size()), raw.data());
  if (handle) graph_->set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
  graph_->finalize();
}

std::vector<CudnnGraph::Tensor> CudnnGraph::engines(const CudnnDescriptor* properties) const {
  CudnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, *graph_);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  if (properties) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *properties);
  heuristics.finalize();
  int64_t count = 0;
  auto results = [&](int64_t most, void* into) {
    check(library().get_attribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, most, &count, into),
          "cudnnBackendGetAttribute");
  };
  results(0, nullptr);
  std::vector<Tensor> found;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < count; ++i) {
    found.push_back(std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    raw.push_back(found.back()->get());
  }
  results(count, raw.data());
  found.resize(size_t(count));
  return found;
}

CudnnPlan::CudnnPlan(std::shared_ptr<CudnnGraph> graph, cudnnHandle_t handle,
                     const CudnnDescriptor* properties)
    : graph_(std::move(graph)) {
  std::string why = "heuristics propose no engine";
  for (const CudnnGraph::Tensor& engine : graph_->engines(properties)) try {
      auto plan = std::make_unique<CudnnDescriptor>(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan->set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, *engine);
      if (handle) plan->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle);
      if (properties) plan->set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *properties);
      plan->finalize();
      int64_t count = 0;
      check(library().get_attribute(plan->get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                    1, &count, &workspace_bytes_),
            "cudnnBackendGetAttribute");
      engine_ = engine, plan_ = std::move(plan);
      return;
    } catch (const Error& e) {
      why = e.what();
    }
  fail(Exit::internal, "no plan works: {}", why);
}

void CudnnPlan::execute(cudnnHandle_t handle, const std::vector<Operand>& operands, void* workspace) const {
  std::vector<int64_t> names;
  std::vector<const void*> data;
  for (const Operand& o : operands) names.push_back(o.name), data.push_back(o.data);
  CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, int64_t(data.size()), data.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, int64_t(names.size()), names.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize();
  check(library().execute(handle, plan_->get(), pack.get()), "cudnnBackendExecute");
}

}  // namespace cleave::kernels::gpu

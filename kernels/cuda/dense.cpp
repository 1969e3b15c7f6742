// Runs each op as one library kernel if a trial confirmed it, else as two kernels. Only 16-bit operands use
// epilogues: fp32 results should not depend on the rounding of library functions.
#include "kernels/dense.h"

#include <optional>
#include <type_traits>

#include "kernels/choices.h"
#include "kernels/cuda/gated_routes.h"
#include "kernels/cuda/measure.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/trial.h"
#include "kernels/elementwise.h"

namespace cleave::kernels::gpu {
namespace {

constexpr const char* kEpilogueSwitch = "CLEAVE_GPU_EPILOGUES";
// One bf16 rounding and the sums of a trial's 128 products.
constexpr double kDenseBound = 0x1p-5;
// Rows, inputs and outputs of a trial: different, so that a transposed matrix is detected.
constexpr int64_t kRows = 192, kIn = 128, kOut = 64;

bool sixteen_bits(DType t) { return t == DType::bf16 || t == DType::fp16; }

bool some_work(const Matmul& product) { return product.m() * product.n() * product.k() > 0; }

template <class Op>
void run_separately(const Op& op, Stream& stream) {
  launch(op.product(), stream);
  launch(op.activation(), stream);
}
void run_separately(const DenseWeightGradient& op, Stream& stream) {
  launch(op.product(), stream);
  launch(op.bias_gradient(), stream);
}

// Returns false if the library has no kernel.
bool run_together(const DenseActivation& op, Stream& stream) {
  Matmul product = op.product();
  product.c = op.y;
  return multiply({.op = product, .epilogue = Epilogue::gelu, .hidden = op.hidden}, cuda_queue(stream));
}
bool run_together(const DenseActivationGradient& op, Stream& stream) {
  return multiply({.op = op.product(), .epilogue = Epilogue::gelu_gradient, .hidden = op.hidden},
                  cuda_queue(stream));
}
bool run_together(const DenseGated& op, Stream& stream) { return library_gated(op, stream); }
bool run_together(const DenseGatedGradient& op, Stream& stream) { return library_gated(op, stream); }
// The library overwrites the bias gradient, so accumulation goes through the scratch.
bool run_together(const DenseWeightGradient& op, Stream& stream) {
  CudaQueue& queue = cuda_queue(stream);
  Tensor dbias = op.dbias;
  if (op.accumulate_bias) dbias = Tensor(queue.scratch(dbias.bytes()), dbias.dtype(), dbias.shape());
  if (!multiply({.op = op.product(), .epilogue = Epilogue::bias_gradient, .dbias = dbias}, queue))
    return false;
  if (op.accumulate_bias) launch(Axpy{.y = op.dbias, .x = dbias}, stream);
  return true;
}

constexpr const char* kTogetherUnmeasured = "together, because the scratch is too small to measure";

// Returns true if one product with its epilogue is faster than separate kernels for this shape. `added_to`
// are the tensors that both accumulate into. Without measurements returns else_together.
template <class Op>
bool faster_together(const Op& op, const std::string& what, std::vector<Tensor> added_to, Stream& stream,
                     bool else_together = true) {
  CudaQueue& queue = cuda_queue(stream);
  if (!queue.measures) return else_together;
  const Matmul product = op.product();
  Choices& choices = Choices::of_process();
  const std::string name = fmt::format("{} {} x {} x {} {} of {}{}, {}", what, product.m(), product.n(),
                                       product.k(), name_of(product.c.dtype()), name_of(product.a.dtype()),
                                       added_to.empty() ? "" : " added", place_of_choices(queue));
  std::optional<std::string> chosen = choices.find(name);
  if (!chosen && measures(queue)) {
    const Untouched untouched(queue, std::move(added_to));
    if (!untouched.fits())
      return choices.keep(name, kTogetherUnmeasured, Choices::Reason::no_space) == kTogetherUnmeasured;
    const float together = milliseconds_of(queue, [&] { return run_together(op, stream); });
    const float separate = milliseconds_of(queue, [&] { return run_separately(op, stream), true; });
    untouched.restore();
    chosen = choices.keep(name, together < separate ? "together" : "apart");
  }
  return chosen ? *chosen == "together" || *chosen == kTogetherUnmeasured : else_together;
}

constexpr const char *kNoKernel = "the library has no kernel for a small trial",
                     *kNoSpace = "the stream has too little scratch for a trial";

// Trial of a layer with function f; its product is `wide` times as wide as its output.
template <class Op>
Verdict trial_of_layer(const char* f, int64_t wide, DType type, bool bias, Stream& stream) {
  TrialSpace space(stream);
  if (!space.enough()) return kNoSpace;
  Op op;
  op.x = space.random(type, {kRows, kIn}), op.weight = space.random(type, {wide * kOut, kIn}, 0.1f);
  if (bias) op.bias = space.random(type, {wide * kOut});
  Op separate = op;
  for (Op* one : {&op, &separate})
    one->y = space.take(type, {kRows, kOut}), one->hidden = space.take(type, {kRows, wide * kOut});
  if (!run_together(op, stream)) return kNoKernel;
  run_separately(separate, stream);
  const Verdict hidden =
      difference("the product in front of it", op.hidden, separate.hidden, kDenseBound, stream);
  return hidden.empty() ? difference(f, op.y, separate.y, kDenseBound, stream) : hidden;
}

// Trial of the gradient through f; its result is `wide` times as wide as the product.
template <class Op>
Verdict trial_of_gradient(const char* f, int64_t wide, DType type, Stream& stream) {
  TrialSpace space(stream);
  if (!space.enough()) return kNoSpace;
  Op op;
  op.dy = space.random(type, {kRows, kIn}), op.weight = space.random(type, {kIn, kOut}, 0.1f);
  op.hidden = space.random(type, {kRows, wide * kOut});
  if constexpr (std::is_same_v<Op, DenseGatedGradient>) op.dactive = space.take(type, {kRows, kOut});
  Op separate = op;
  for (Op* one : {&op, &separate}) one->dhidden = space.take(type, {kRows, wide * kOut});
  if (!run_together(op, stream)) return kNoKernel;
  run_separately(separate, stream);
  return difference(f, op.dhidden, separate.dhidden, kDenseBound, stream);
}

Verdict trial_of_weight_gradient(const DenseWeightGradient& like, Stream& stream) {
  TrialSpace space(stream);
  if (!space.enough()) return kNoSpace;
  DenseWeightGradient op{.dweight = {},
                         .dbias = {},
                         .dy = space.random(like.dy.dtype(), {kRows, kOut}, 0.5f),
                         .x = space.random(like.x.dtype(), {kRows, kIn}, 0.5f),
                         .accumulate_weight = like.accumulate_weight,
                         .accumulate_bias = like.accumulate_bias};
  DenseWeightGradient separate = op;
  for (DenseWeightGradient* one : {&op, &separate}) {
    one->dweight = space.take(like.dweight.dtype(), {kOut, kIn});
    one->dbias = space.take(like.dbias.dtype(), {kOut});
    launch(Fill{.y = one->dweight, .value = 1}, stream);
    launch(Fill{.y = one->dbias, .value = 2}, stream);
  }
  if (!run_together(op, stream)) return kNoKernel;
  run_separately(separate, stream);
  const Verdict weight =
      difference("the weight's gradient", op.dweight, separate.dweight, kDenseBound, stream);
  return weight.empty() ? difference("the bias's gradient", op.dbias, separate.dbias, kDenseBound, stream)
                        : weight;
}

}  // namespace

void run(const DenseActivation& op, Stream& stream) {
  const DType type = op.x.dtype();
  const bool bias = op.bias.defined(), one_type = op.weight.dtype() == type && op.y.dtype() == type &&
                                                  (!bias || op.bias.dtype() == type);
  if (op.kind == Activation::gelu_tanh && sixteen_bits(type) && one_type && some_work(op.product()) &&
      proved(fmt::format("cuBLASLt's GELU in {}{}", name_of(type), bias ? " with bias" : ""), kEpilogueSwitch,
             stream, [&] { return trial_of_layer<DenseActivation>("GELU", 1, type, bias, stream); }) &&
      faster_together(op, "GELU", {}, stream) && run_together(op, stream))
    return;
  run_separately(op, stream);
}

void run(const DenseActivationGradient& op, Stream& stream) {
  const DType type = op.dy.dtype();
  const char* what = "GELU's gradient";
  const bool one_type = op.weight.dtype() == type && op.dhidden.dtype() == type;
  if (op.kind == Activation::gelu_tanh && sixteen_bits(type) && one_type && some_work(op.product()) &&
      proved(fmt::format("cuBLASLt's GELU gradient in {}", name_of(type)), kEpilogueSwitch, stream,
             [&] { return trial_of_gradient<DenseActivationGradient>(what, 1, type, stream); }) &&
      faster_together(op, what, {}, stream) && run_together(op, stream))
    return;
  run_separately(op, stream);
}

std::string by_cudnn(const char* what) {
  return fmt::format("{} by cuDNN {}", what, library_gates_version());
}

// Only if measured to be faster, because the cost of a product in a cuDNN-generated kernel is unknown.
void run(const DenseGated& op, Stream& stream) {
  const DType type = op.x.dtype();
  const bool one_type = op.weight.dtype() == type && op.y.dtype() == type;
  if (op.kind == Activation::silu && sixteen_bits(type) && one_type && !op.bias.defined() &&
      some_work(op.product()) && cuda_queue(stream).measures && library_gates(stream) &&
      proved(fmt::format("cuDNN's SwiGLU in {}", name_of(type)), kEpilogueSwitch, stream,
             [&] { return trial_of_layer<DenseGated>("SwiGLU", 2, type, false, stream); }) &&
      faster_together(op, by_cudnn("SwiGLU"), {}, stream, false) && run_together(op, stream))
    return;
  run_separately(op, stream);
}

void run(const DenseGatedGradient& op, Stream& stream) {
  const DType type = op.dy.dtype();
  const char* what = "SwiGLU's gradient";
  const bool one_type = op.weight.dtype() == type && op.dhidden.dtype() == type;
  if (op.kind == Activation::silu && sixteen_bits(type) && one_type && some_work(op.product()) &&
      cuda_queue(stream).measures && library_gates(stream) &&
      proved(fmt::format("cuDNN's SwiGLU gradient in {}", name_of(type)), kEpilogueSwitch, stream,
             [&] { return trial_of_gradient<DenseGatedGradient>(what, 2, type, stream); }) &&
      faster_together(op, by_cudnn(what), {}, stream, false) && run_together(op, stream))
    return;
  run_separately(op, stream);
}

void run(const DenseWeightGradient& op, Stream& stream) {
  const DType type = op.dy.dtype(), of = op.dweight.dtype();
  const bool types = op.x.dtype() == type && (of == type || of == DType::fp32) && op.dbias.dtype() == of;
  if (sixteen_bits(type) && types && some_work(op.product()) &&
      proved(fmt::format("cuBLASLt's bias gradient in {} from {}{}", name_of(of), name_of(type),
                         op.accumulate_weight ? ", added" : ""),
             kEpilogueSwitch, stream, [&] { return trial_of_weight_gradient(op, stream); })) {
    std::vector<Tensor> added_to;
    if (op.accumulate_weight) added_to.push_back(op.dweight);
    if (op.accumulate_bias) added_to.push_back(op.dbias);
    if (faster_together(op, "bias gradient", std::move(added_to), stream) && run_together(op, stream)) return;
  }
  run_separately(op, stream);
}

}  // namespace cleave::kernels::gpu

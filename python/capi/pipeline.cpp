// Pipelines with layers that run in the caller: partition, instruction lists and messages.
#include <nlohmann/json.hpp>

#include "pipeline/partition.h"
#include "python/capi/call.h"
#include "python/capi/engine.h"

using namespace cleave;
using capi::call, capi::given, capi::handed_over;

namespace {

runtime::UnitEngine& pipe_of(cleave_engine& engine) { return capi::unit_engine(engine).engine; }

runtime::Link link_of(int32_t link) {
  CHECK(link == CLEAVE_ACTIVATION || link == CLEAVE_GRADIENT, "link {}; there are 0 and 1", link);
  return runtime::Link(link);
}

Tensor message(const runtime::UnitEngine& engine, void* data, int64_t bytes) {
  return Tensor(&given(static_cast<char*>(data), "data"), DType::uint8, {bytes},
                engine.device().is_cuda() ? MemoryKind::device : MemoryKind::host);
}

}  // namespace

int cleave_partition(const char* const* names, const int64_t* params, int32_t layers, int32_t pieces,
                     const char* method, int32_t* first) {
  return call([&] {
    std::vector<pipeline::LayerCost> costs;
    for (int l = 0; l < layers; ++l)
      costs.push_back({.name = (&given(names, "names"))[l],
                       .params = (&given(params, "params"))[l],
                       .bytes = 12.0 * double(params[l])});
    int32_t* to = &given(first, "first");
    *to++ = 0;
    for (const Range& piece : pipeline::partition_layers(costs, {}, pieces, &given(method, "method")))
      *to++ = int32_t(piece.end);
  });
}

int cleave_begin_walk(cleave_engine* engine, int32_t trains, int32_t micros, int32_t shapes_change,
                      char** list) {
  return call(engine, [&](cleave_engine& e) {
    nlohmann::json out = nlohmann::json::array();
    for (const pipeline::Instruction& i : pipe_of(e).begin_walk(trains != 0, micros, shapes_change != 0))
      out.push_back({std::string(name_of(i.op)), i.micro, i.chunk});
    given(list, "list") = handed_over(out.dump());
  });
}

int cleave_send(cleave_engine* engine, int32_t link, const void* data, int64_t bytes) {
  return call(engine, [&](cleave_engine& e) {
    pipe_of(e).send(link_of(link), message(pipe_of(e), const_cast<void*>(data), bytes));
  });
}

int cleave_receive(cleave_engine* engine, int32_t link, void* data, int64_t bytes) {
  return call(engine,
              [&](cleave_engine& e) { pipe_of(e).receive(link_of(link), message(pipe_of(e), data, bytes)); });
}

int cleave_send_shape(cleave_engine* engine, int32_t chunk, const char* shape) {
  return call(engine, [&](cleave_engine& e) { pipe_of(e).send_shape(chunk, &given(shape, "shape")); });
}

int cleave_receive_shape(cleave_engine* engine, int32_t chunk, char** shape) {
  return call(engine, [&](cleave_engine& e) {
    given(shape, "shape") = handed_over(pipe_of(e).receive_shape(chunk));
  });
}

int cleave_take_first(cleave_engine* engine, int32_t unit, void* data, int64_t bytes) {
  return call(engine, [&](cleave_engine& e) {
    e.take_first(unit,
                 Tensor(&given(static_cast<char*>(data), "data"), DType::uint8, {bytes}, MemoryKind::host));
  });
}

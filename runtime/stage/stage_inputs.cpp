// Inputs of a stage: micro-batches, and rows of incremental generation.
#include <algorithm>

#include "device/copy.h"
#include "kernels/elementwise.h"
#include "runtime/stage/stage.h"

namespace cleave::runtime {

Tensor Stage::targets(int micro) const {
  const int64_t slot = micro % shape().batches;
  return targets_.tensor().slice({slot * layers_.rows(), (slot + 1) * layers_.rows()});
}

Tensor Stage::documents(int micro) const {
  if (!model().document_mask) return {};
  const int64_t size = layers_.rows() * model().parts, slot = std::max(0, micro) % shape().batches;
  return documents_.tensor()
      .slice({slot * size, (slot + 1) * size})
      .view({layers_.samples(), size / layers_.samples()});
}

// Every rank gets the documents of whole samples, because attention covers all positions for every cut of the
// sequence.
void Stage::load_documents(int micro, const Tensor& given, Stream& stream) {
  if (!model().document_mask) return;
  const Tensor here = documents(micro);
  const int64_t positions = given.defined() ? given.numel() : 0;
  CHECK(
      positions == here.numel(),
      "batch with the documents of {} positions, the micro-batch has {}; a model with a document mask wants "
      "Batch::documents",
      positions, here.numel());
  for (int64_t i = 0; given.has_memory() && i < positions; ++i) {
    const int64_t place = i % here.dim(1), begin = given.as<int32_t>()[i];
    const int64_t least = place > 0 ? given.as<int32_t>()[i - 1] : 0;
    require(least <= begin && begin <= (place > 0 ? place : 0), Exit::data,
            "documents: wrong start at position {} of sample {} (got {}, expected {} to {})", place,
            i / here.dim(1), begin, least, place);
  }
  copy(here, given.view(here.shape()), stream);
}

void Stage::take_part(Tensor to, Tensor whole, Stream& stream) const {
  const int64_t runs = model().parts == 1 ? 1 : layers_.samples(), run = to.numel() / runs;
  for (int64_t r = 0; r < runs; ++r) {
    const Tensor mine = to.slice({r * run, (r + 1) * run});
    const Tensor from = whole.slice(Range{0, run}.shifted((r * model().parts + model().part) * run));
    if (from.dtype() == mine.dtype())
      copy(mine, from, stream);
    else
      kernels::launch(kernels::Cast{.y = mine, .x = from}, stream);
  }
}

void Stage::load(int micro, const Batch& batch, Stream& stream) {
  if (texts_) {
    CHECK(micro == 0 && batch.input.numel() == texts_->rows(), "a pass of {} rows of texts, but {} tokens",
          texts_->rows(), batch.input.numel());
    positions_.resize(std::max<size_t>(1, positions_.size()));
    if (shape().first) copy(open(micro, 0, stream), batch.input, stream);
    loaded_ = stream.record();
    return;
  }
  const int64_t inputs = layers_.input().shape.numel() * model().parts,
                targets_of = layers_.rows() * model().parts;
  require(batch.input.numel() == inputs && batch.targets.numel() == targets_of, Exit::data,
          "batch: wrong size (got {} input elements and {} targets; a micro-batch of {} samples of {} has {} "
          "and {})",
          batch.input.numel(), batch.targets.numel(), layers_.samples(), model().name, inputs, targets_of);
  if (positions_.size() <= size_t(micro)) positions_.resize(size_t(micro) + 1);
  positions_[size_t(micro)] = batch.position;
  if (shape().first) {
    const Tensor x = open(micro, 0, stream);
    take_part(x, batch.input, stream);
  }
  if (shape().last) take_part(targets(micro), batch.targets, stream);
  load_documents(micro, batch.documents, stream);
  loaded_ = stream.record();
}

void Stage::begin_texts(const TextPass* pass, Stream& stream) {
  texts_ = pass;
  if (!pass) return;
  CHECK(shape().texts > 0 && 0 < pass->rows() && pass->rows() <= text_rows(),
        "a pass of {} rows of texts; this stage has room for {}", pass->rows(),
        shape().texts > 0 ? text_rows() : 0);
  for (const auto* values : {&pass->texts, &pass->positions}) {
    const Tensor to =
        text_rows_.tensor().rows({values == &pass->positions, values == &pass->positions ? 2 : 1});
    copy(to.view({text_rows()}).slice({0, pass->rows()}),
         Tensor(const_cast<int32_t*>(values->data()), DType::int32, {pass->rows()}, MemoryKind::host),
         stream);
  }
}

model::KvCache Stage::kv_cache_of(int chunk, int l) const {
  if (!texts_) return {};
  const auto rows = [&](int64_t i) {
    return text_rows_.tensor().rows({i, i + 1}).view({text_rows()}).slice({0, texts_->rows()});
  };
  model::KvCache cache{.rows = {rows(0), rows(1)}, .keys = {}, .values = {}};
  const Buffer &keys = kept_keys_[size_t(layers_.in_model(chunk, l))],
               &values = kept_values_[size_t(layers_.in_model(chunk, l))];
  if (keys.defined()) cache.keys = keys, cache.values = values;
  return cache;
}

}  // namespace cleave::runtime

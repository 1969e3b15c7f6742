#include "runtime/step/state_records.h"

#include "device/copy.h"
#include "kernels/elementwise.h"

namespace cleave::runtime {
namespace {

constexpr const char* kBits = "bytes";  // kind of the records of units with words

Range words_to_elements(Range r, int word) { return word > 0 ? Range{r.begin * word, r.end * word} : r; }

Range elements_to_words(Range r, int word) {
  return word > 0 ? Range{div_exact(r.begin, word), div_exact(r.end, word)} : r;
}

// Elements of one kind of state in a unit's slice, with their names.
struct StateSpan {
  int unit, kind;
  Range at;  // within the slice
  std::string tensor;
  std::vector<int64_t> shape;
  checkpoint::Elements elements;
  int word;  // elements of the slice per element of the record (UnitSpec::word); 0: one, a number

  // Returns the elements of the slice for elements of the record.
  Range of_slice(Range r) const { return words_to_elements(r, word).shifted(at.begin); }
};

// Merges runs of equal length at equal distances into one record, as in a tensor cut by columns.
void add(std::vector<StateSpan>& out, StateSpan span) {
  if (!out.empty() && out.back().unit == span.unit && out.back().kind == span.kind &&
      out.back().tensor == span.tensor && out.back().at.end == span.at.begin) {
    StateSpan& last = out.back();
    checkpoint::Elements& e = last.elements;
    const int64_t run = e.stride ? e.run : e.range.size(),
                  stride = span.elements.range.begin - (e.range.end - run);
    if (span.elements.range.size() == run && stride > run && (e.stride == 0 || e.stride == stride)) {
      e = {{e.range.begin, span.elements.range.end}, run, stride};
      last.at.end = span.at.end;
      return;
    }
  }
  out.push_back(std::move(span));
}

std::vector<checkpoint::Record> records_of(RankState& rank, bool all_slices, Stream& compute) {
  std::vector<StateSpan> spans;
  const std::vector<std::string> kinds = rank.saved->kinds();
  for (int u = 0; u < rank.store.units(); ++u) {
    if (!all_slices && !rank.speaks_for(u)) continue;
    const zero::FlatLayout& layout = rank.store.layout(u);
    const Range mine = rank.store.slice(u);
    // Replicas share the work: each saves the parts that it counts in the norm.
    const std::vector<Range> parts =
        all_slices ? std::vector<Range>{{0, mine.size()}} : rank.store.counted(u);
    for (int kind = 0; kind < (layout.frozen() ? 1 : int(kinds.size())); ++kind)
      for (const Range& part : parts)
        for (const zero::FlatLayout::Piece& p : layout.pieces(part.shifted(mine.begin))) {
          const ParamSpec& param = layout.param(p.param);
          const int word = layout.word();
          add(spans, {u,
                      kind,
                      Range{0, p.elements.size()}.shifted(part.begin + p.offset),
                      param.name,
                      word > 0 ? std::vector<int64_t>{param.numel() / word} : param.whole_shape(),
                      {elements_to_words(p.elements, word)},
                      word});
        }
  }
  zero::SavedState& state = *rank.saved;
  std::vector<checkpoint::Record> out;
  for (const StateSpan& p : spans)
    out.push_back(
        {.kind = p.word > 0 ? kBits : kinds[size_t(p.kind)],
         .tensor = p.tensor,
         .shape = p.shape,
         .elements = p.elements,
         .read = [&state, &compute, p](Range r,
                                       Tensor to) { state.read(p.unit, p.kind, p.of_slice(r), to, compute); },
         .write = [&state, &compute, p](
                      Range r, Tensor from) { state.write(p.unit, p.kind, p.of_slice(r), from, compute); },
         .dtype = p.word > 0 ? DType::int64 : DType::fp32});
  return out;
}

Tensor view_of(std::span<float> whole, Range elements) {
  return Tensor(whole.data() + elements.begin, DType::fp32, {elements.size()}, MemoryKind::host);
}

// Copies a part of a unit's gradients through host memory, in their form.
void read_floats(const zero::GradientForm& form, Tensor from, Tensor to, Stream& compute, Stream& host) {
  const auto convert = [&]<class T>(T, const auto& launch) {
    std::vector<T> held = to_host<T>(from, compute);
    launch(Tensor(held.data(), from.dtype(), {from.numel()}, MemoryKind::host));
    host.synchronize();
  };
  if (form.decoded_numel(from.numel()) > 0)
    convert(int64_t{}, [&](Tensor sum) { form.decode(to, sum, host); });
  else
    with_float(from.dtype(), [&]<class T>(T type) {
      convert(type, [&](Tensor sum) { kernels::launch(kernels::Cast{.y = to, .x = sum}, host); });
    });
}

}  // namespace

std::vector<checkpoint::Record> records_to_save(RankState& rank, Stream& compute) {
  return records_of(rank, false, compute);
}

std::vector<checkpoint::Record> records_to_save(RankState& rank, Computation& computes, Stream& compute) {
  std::vector<checkpoint::Record> out = records_to_save(rank, compute);
  for (checkpoint::Record& r : computes.records(Computation::Whose::spoken_for)) out.push_back(std::move(r));
  return out;
}

std::vector<checkpoint::Record> records_to_load(RankState& rank, Stream& compute) {
  return records_of(rank, true, compute);
}

void read_state(RankState& rank, const std::string& name, int kind, Tensor whole, Stream& compute) {
  for (int u = 0; u < rank.store.units(); ++u) {
    if (!rank.speaks_for(u)) continue;
    const zero::FlatLayout& layout = rank.store.layout(u);
    for (const Range& counted : rank.store.counted(u))
      for (const zero::FlatLayout::Piece& piece : layout.pieces(counted.shifted(rank.store.slice(u).begin)))
        if (layout.param(piece.param).name == name)
          rank.saved->read(u, kind, Range{0, piece.elements.size()}.shifted(counted.begin + piece.offset),
                           whole.slice(elements_to_words(piece.elements, layout.word())), compute);
  }
}

void read_own_master(RankState& rank, const std::string& name, std::span<float> whole, Stream& compute) {
  for (int u = 0; u < rank.store.units(); ++u) {
    const zero::FlatLayout& layout = rank.store.layout(u);
    for (const zero::FlatLayout::Piece& piece : layout.pieces(rank.store.slice(u)))
      if (layout.param(piece.param).name == name)
        rank.saved->read(u, 0, Range{0, piece.elements.size()}.shifted(piece.offset),
                         view_of(whole, piece.elements), compute);
  }
}

void read_gradient(RankState& rank, const std::string& name, std::span<float> whole, Stream& compute) {
  Stream host;
  for (int u = 0; u < rank.store.units(); ++u) {
    const zero::FlatLayout& layout = rank.store.layout(u);
    if (!rank.speaks_for(u) || layout.frozen()) continue;
    for (const Range& counted : rank.store.counted(u))
      for (const zero::FlatLayout::Piece& piece : layout.pieces(counted.shifted(rank.store.slice(u).begin)))
        if (layout.param(piece.param).name == name)
          read_floats(rank.store.gradient_form(),
                      rank.store.gradient_slice(u).slice(
                          Range{0, piece.elements.size()}.shifted(counted.begin + piece.offset)),
                      view_of(whole, piece.elements), compute, host);
  }
  host.synchronize();
}

void read_own_gradient(RankState& rank, const std::string& name, std::span<float> whole, Stream& compute) {
  Stream host;
  const zero::GradientShards& gradients = rank.store.gradients();
  for (int u = 0; u < rank.store.units(); ++u) {
    const zero::FlatLayout& layout = rank.store.layout(u);
    if (layout.frozen()) continue;
    for (const zero::FlatLayout::Piece& piece : layout.pieces({0, layout.numel()}))
      if (layout.param(piece.param).name == name && gradients.holds(u, piece.param))
        read_floats(gradients.form(),
                    gradients.whole(u).slice(Range{0, piece.elements.size()}.shifted(piece.offset)),
                    view_of(whole, piece.elements), compute, host);
  }
}

void write_gradient(RankState& rank, const std::string& name, std::span<const float> whole, Memory& memory,
                    Stream& compute) {
  const zero::GradientForm& form = rank.store.gradient_form();
  for (int u = 0; u < rank.store.units(); ++u) {
    const zero::FlatLayout& layout = rank.store.layout(u);
    if (layout.frozen()) continue;
    for (const zero::FlatLayout::Piece& piece : layout.pieces(rank.store.slice(u))) {
      if (layout.param(piece.param).name != name) continue;
      const Range e = piece.elements;
      std::vector<float> given(whole.begin() + e.begin, whole.begin() + e.end);
      const Tensor to = rank.store.gradient_slice(u).slice(Range{0, e.size()}.shifted(piece.offset));
      const auto staged = [&](DType type) {
        return memory.allocate(MemoryKind::device, Category::staging, type, {e.size()}, name);
      };
      const Buffer written = staged(DType::fp32), sum = staged(to.dtype());
      copy(written, view_of(given, {0, e.size()}), compute);
      if (form.apart_numel(e.size()) > 0)
        form.encode(sum, written, false, compute);
      else
        kernels::launch(kernels::Cast{.y = sum, .x = written}, compute);
      copy(to, sum, compute);
      compute.synchronize();
    }
  }
}

void write_state(RankState& rank, const std::string& name, int kind, Tensor whole, Stream& compute) {
  for (int u = 0; u < rank.store.units(); ++u) {
    const zero::FlatLayout& layout = rank.store.layout(u);
    for (int p = 0; kind == 0 && p < layout.params(); ++p)
      if (layout.param(p).name == name) rank.saved->begin_masters(u, compute);
    for (const zero::FlatLayout::Piece& piece : layout.pieces(rank.store.slice(u)))
      if (layout.param(piece.param).name == name)
        rank.saved->write(u, kind, Range{0, piece.elements.size()}.shifted(piece.offset),
                          whole.slice(elements_to_words(piece.elements, layout.word())), compute);
  }
}

void write_parameters(RankState& rank, const std::function<std::vector<float>(const ParamSpec&)>& values,
                      Stream& compute) {
  for (int u = 0; u < rank.store.units(); ++u) {
    const zero::FlatLayout& layout = rank.store.layout(u);
    CHECK(layout.word() == 0, "{} has no numbers", layout.name());
    int held = -1;  // parameter with values in `whole`
    std::vector<float> whole;
    for (const zero::FlatLayout::Piece& piece : layout.pieces(rank.store.slice(u))) {
      const ParamSpec& p = layout.param(piece.param);
      if (held != piece.param) whole = values(p), held = piece.param;
      CHECK(int64_t(whole.size()) == p.whole_numel(), "{} has {} elements, got {}", p.name, p.whole_numel(),
            whole.size());
      rank.saved->write(u, 0, Range{0, piece.elements.size()}.shifted(piece.offset),
                        view_of(whole, piece.elements), compute);
    }
  }
  rank.saved->publish_masters(compute);
}

}  // namespace cleave::runtime

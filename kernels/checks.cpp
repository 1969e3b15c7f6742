#include "kernels/checks.h"

#include <cmath>

#include "kernels/activation.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/launched.h"
#include "kernels/loss.h"

namespace cleave::kernels {

void ActivationForward::check() const {
  Operand("ActivationForward", "x", x).is_float();
  Operand("ActivationForward", "y", y).is(x.dtype()).numel(x.numel());
}
CLEAVE_LAUNCH(ActivationForward)

void ActivationBackward::check() const {
  Operand("ActivationBackward", "x", x).is_float();
  Operand("ActivationBackward", "dy", dy).is(x.dtype()).numel(x.numel());
  Operand("ActivationBackward", "dx", dx).is(x.dtype()).numel(x.numel());
}
CLEAVE_LAUNCH(ActivationBackward)

namespace {

// Checks the input of a gated unit: rows of two halves with the width of `narrow`.
void check_halves(const char* op, const char* name, const Tensor& wide, const Tensor& narrow) {
  Operand(op, name, wide).is(narrow.dtype()).has({narrow.dim(0), 2 * narrow.dim(1)});
}

}  // namespace

void GatedForward::check() const {
  const char* op = "GatedForward";
  Operand(op, "y", y).is_float().rank(2).no_overlap_with("x", x);
  check_halves(op, "x", x, y);
}
CLEAVE_LAUNCH(GatedForward)

void GatedBackward::check() const {
  const char* op = "GatedBackward";
  Operand(op, "dy", dy).is_float().rank(2).no_overlap_with("dx", dx);
  check_halves(op, "x", x, dy);
  check_halves(op, "dx", dx, dy);
}
CLEAVE_LAUNCH(GatedBackward)

void SoftCap::check() const {
  Operand("SoftCap", "x", x).is_float();
  Operand("SoftCap", "y", y).is(x.dtype()).numel(x.numel());
  CHECK(cap > 0, "SoftCap: cap must be above 0, got {}", cap);
}
CLEAVE_LAUNCH(SoftCap)

void Add::check() const {
  Operand("Add", "y", y).is_float();
  Operand("Add", "a", a).is(y.dtype()).numel(y.numel());
  Operand("Add", "b", b).is(y.dtype()).numel(y.numel());
}
CLEAVE_LAUNCH(Add)

void Dropout::check() const {
  Operand("Dropout", "x", x).is_float();
  Operand("Dropout", "y", y).is(x.dtype()).numel(x.numel());
  CHECK(p >= 0 && p <= 1, "Dropout: p must be in [0, 1], got {}", p);
  CHECK(offset >= 0, "Dropout: offset must not be negative, got {}", offset);
}
CLEAVE_LAUNCH(Dropout)

void Cast::check() const {
  CHECK(cleave::is_float(x.dtype()) && cleave::is_float(y.dtype()),
        "Cast: expected float types, got {} to {}", name_of(x.dtype()), name_of(y.dtype()));
  Operand("Cast", "x", x);
  Operand("Cast", "y", y).numel(x.numel());
}
CLEAVE_LAUNCH(Cast)

void Fill::check() const { Operand("Fill", "y", y); }
CLEAVE_LAUNCH(Fill)

void Axpy::check() const {
  Operand("Axpy", "x", x).is_float();
  Operand("Axpy", "y", y).is_float().numel(x.numel());
}
CLEAVE_LAUNCH(Axpy)

void Scale::check() const {
  Operand("Scale", "x", x).is_float();
  Operand("Scale", "y", y).is(x.dtype()).numel(x.numel());
}
CLEAVE_LAUNCH(Scale)

void CopyRuns::check() const {
  Operand("CopyRuns", "y", y).is(x.dtype()).no_overlap_with("x", x);
  Operand("CopyRuns", "x", x);
  CHECK(width >= 0 && outer.count >= 0 && inner.count >= 0, "CopyRuns: {} x {} runs of {}", outer.count,
        inner.count, width);
  if (width == 0 || outer.count == 0 || inner.count == 0) return;
  const auto fits = [&](const char* name, const Tensor& t, int64_t of_outer, int64_t of_inner) {
    const int64_t last = (outer.count - 1) * of_outer + (inner.count - 1) * of_inner + width;
    CHECK(of_outer >= 0 && of_inner >= 0 && last <= t.numel(),
          "CopyRuns: {} has {} elements, the last run ends at {}", name, t.numel(), last);
  };
  fits("y", y, outer.y, inner.y);
  fits("x", x, outer.x, inner.x);
}
CLEAVE_LAUNCH(CopyRuns)

void SumSquares::check() const {
  Operand("SumSquares", "x", x).is_float();
  Operand("SumSquares", "out", out).is(DType::fp64).numel(1);
}
CLEAVE_LAUNCH(SumSquares)

void Sum::check() const {
  Operand("Sum", "x", x).is(DType::fp32);
  Operand("Sum", "out", out).is(DType::fp64).numel(1);
}
CLEAVE_LAUNCH(Sum)

void RandomFill::check() const {
  Operand("RandomFill", "y", y).is(DType::fp32);
  CHECK(first >= 0, "RandomFill: first must not be negative, got {}", first);
}
CLEAVE_LAUNCH(RandomFill)

static void check_part(const char* op, const VocabPart& part) {
  CHECK(part.first >= 0 && part.size >= 0 && (part.size > 0 || part.first == 0),
        "{}: a part from token {} of a vocabulary of {}", op, part.first, part.size);
}

void EmbeddingForward::check() const {
  const char* op = "EmbeddingForward";
  Operand(op, "wte", wte).is_float().rank(2);
  Operand(op, "y", y).is(wte.dtype()).rank(2);
  Operand(op, "y", y).has({tokens.numel(), wte.dim(1)});
  check_part(op, part);
  Operand(op, "tokens", tokens).is(DType::int32);
  CHECK(seq > 0 && first_position >= 0, "{}: seq {} and first_position {} must be positive and not negative",
        op, seq, first_position);
  if (!wpe.defined()) return;
  Operand(op, "wpe", wpe).is(wte.dtype()).rank(2);
  CHECK(wpe.dim(1) == wte.dim(1), "{}: wpe is {} wide, wte {}", op, wpe.dim(1), wte.dim(1));
  if (positions.defined()) {
    Operand(op, "positions", positions).is(DType::int32).numel(tokens.numel());
    return;
  }
  const int64_t last = first_position + std::min(seq, y.dim(0));
  CHECK(last <= wpe.dim(0), "{}: position {} needed, wpe has {}", op, last - 1, wpe.dim(0));
}
CLEAVE_LAUNCH(EmbeddingForward)

void EmbeddingBackward::check() const {
  const char* op = "EmbeddingBackward";
  Operand(op, "dy", dy).is_float().rank(2);
  Operand(op, "tokens", tokens).is(DType::int32).numel(dy.dim(0));
  CHECK(seq > 0 && first_row >= 0 && tokens.numel() < (int64_t{1} << 31),
        "{}: seq {} must be positive, first_row {} not negative, rows {} below 2^31", op, seq, first_row,
        tokens.numel());
  if (dwte.defined()) {
    Operand(op, "dwte", dwte).is_float().rank(2);
    CHECK(dwte.dim(1) == dy.dim(1), "{}: dwte is {} wide, dy {}", op, dwte.dim(1), dy.dim(1));
    check_part(op, part);
  }
  if (!dwpe.defined()) return;
  Operand(op, "dwpe", dwpe).is_float().rank(2);
  CHECK(dwpe.dim(1) == dy.dim(1), "{}: dwpe is {} wide, dy {}", op, dwpe.dim(1), dy.dim(1));
  const int64_t used = std::min(seq, first_row + dy.dim(0));
  CHECK(used <= dwpe.dim(0), "{}: {} positions needed, dwpe has {}", op, used, dwpe.dim(0));
}
CLEAVE_LAUNCH(EmbeddingBackward)

void DocumentPositions::check() const {
  const char* op = "DocumentPositions";
  Operand(op, "documents", documents).is(DType::int32).rank(2);
  Operand(op, "positions", positions).is(DType::int32).rank(2).no_overlap_with("documents", documents);
  Operand(op, "positions", positions).has({documents.dim(0), positions.dim(1)});
  CHECK(first >= 0 && first + positions.dim(1) <= documents.dim(1),
        "{}: positions [{}, {}) of sequences of {}", op, first, first + positions.dim(1), documents.dim(1));
}
CLEAVE_LAUNCH(DocumentPositions)

void CrossEntropy::check() const {
  const char* op = "CrossEntropy";
  Operand(op, "logits", logits).is_float().rank(2);
  Operand(op, "losses", losses).is(DType::fp32).numel(logits.dim(0));
  Operand(op, "targets", targets).is(DType::int32).numel(logits.dim(0));
  if (dlogits.defined())
    Operand(op, "dlogits", dlogits).is_float().has(logits.shape()).no_overlap_with("logits", logits);
  if (hits.defined()) Operand(op, "hits", hits).is(DType::fp32).numel(logits.dim(0));
  CHECK(vocab > 0 && vocab <= logits.dim(1), "{}: vocab {} must be in [1, {}], the columns of logits", op,
        vocab, logits.dim(1));
  check_cap(op, cap);
}
CLEAVE_LAUNCH(CrossEntropy)

void SoftmaxPart::check() const {
  const char* op = "SoftmaxPart";
  Operand(op, "logits", logits).is_float().rank(2);
  Operand(op, "stats", stats).is(DType::fp32).has({logits.dim(0), 3});
  Operand(op, "targets", targets).is(DType::int32).numel(logits.dim(0));
  CHECK(vocab >= 0 && vocab <= logits.dim(1) && first >= 0, "{}: tokens {} to {} do not fit {} columns", op,
        first, first + vocab, logits.dim(1));
}
CLEAVE_LAUNCH(SoftmaxPart)

void CrossEntropyPart::check() const {
  const char* op = "CrossEntropyPart";
  Operand(op, "logits", logits).is_float().rank(2);
  Operand(op, "losses", losses).is(DType::fp32).numel(logits.dim(0));
  Operand(op, "targets", targets).is(DType::int32).numel(logits.dim(0));
  Operand(op, "stats", stats).is(DType::fp32).rank(3);
  Operand(op, "stats", stats).has({stats.dim(0), logits.dim(0), 3});
  if (dlogits.defined())
    Operand(op, "dlogits", dlogits).is_float().has(logits.shape()).no_overlap_with("logits", logits);
  if (hits.defined()) Operand(op, "hits", hits).is(DType::fp32).numel(logits.dim(0));
  CHECK(vocab >= 0 && vocab <= logits.dim(1) && first >= 0 && first + vocab <= all_vocab,
        "{}: tokens {} to {} of {} do not fit {} columns", op, first, first + vocab, all_vocab,
        logits.dim(1));
  CHECK(part >= 0 && part < stats.dim(0), "{}: part is out of range (got {}, expected below {})", op, part,
        stats.dim(0));
  check_cap(op, cap);
}
CLEAVE_LAUNCH(CrossEntropyPart)

}  // namespace cleave::kernels

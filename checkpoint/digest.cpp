#include "checkpoint/digest.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "checkpoint/checksum.h"
#include "core/error.h"

namespace cleave::checkpoint {
namespace {

// 128-bit XXH3 of bytes that arrive in pieces.
class LongChecksum {
 public:
  LongChecksum() : state_(XXH3_createState(), &XXH3_freeState) { XXH3_128bits_reset(state_.get()); }
  void add(const void* bytes, size_t n) { XXH3_128bits_update(state_.get(), bytes, n); }
  std::string digits() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

void round_to(DType type, std::span<float> values) {
  if (type == DType::bf16)
    for (float& v : values) v = to_float(from_float<bf16>(v));
  if (type == DType::fp16)
    for (float& v : values) v = to_float(from_float<fp16>(v));
}

std::string line_of(const NamedShape& t, const std::function<void(const Record&)>& read, DType as) {
  LongChecksum values;
  read({t.kind,
        t.tensor,
        t.shape,
        {{0, numel_of(t.shape)}},
        {},
        [&](Range range, Tensor piece) {
          if (t.dtype == DType::fp32) round_to(as, {piece.as<float>(), size_t(range.size())});
          values.add(piece.raw(), size_t(piece.bytes()));
        },
        t.dtype});
  return fmt::format("{} [{}] {}\n", t.tensor, fmt::join(t.shape, ", "), values.digits());
}

}  // namespace

std::map<std::string, std::string> digests(std::span<const NamedShape> tensors,
                                           const std::function<void(const Record&)>& read, int threads,
                                           DType as) {
  std::vector<NamedShape> sorted(tensors.begin(), tensors.end());
  std::sort(sorted.begin(), sorted.end(),
            [](auto& a, auto& b) { return std::tie(a.kind, a.tensor) < std::tie(b.kind, b.tensor); });
  std::vector<std::string> lines(sorted.size());
  std::vector<std::exception_ptr> failures(sorted.size());
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t at = next++; at < sorted.size(); at = next++) try {
        lines[at] = line_of(sorted[at], read, as);
      } catch (...) {
        failures[at] = std::current_exception();
      }
  };
  {
    std::vector<std::jthread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(work);
    work();
  }
  std::map<std::string, LongChecksum> kinds;
  for (size_t at = 0; at < sorted.size(); ++at) {
    if (failures[at]) std::rethrow_exception(failures[at]);
    kinds[sorted[at].kind].add(lines[at].data(), lines[at].size());
  }
  std::map<std::string, std::string> out;
  for (const auto& [kind, checksum] : kinds) out[kind] = checksum.digits();
  return out;
}

std::map<std::string, std::string> digests(const CheckpointReader& reader, int threads, DType as) {
  std::vector<NamedShape> tensors;
  for (const auto& [name, whole] : reader.manifest().tensors)
    tensors.push_back({name.first, name.second, whole.shape, whole.dtype});
  return digests(
      tensors, [&](const Record& r) { reader.read(r); }, threads, as);
}

}  // namespace cleave::checkpoint

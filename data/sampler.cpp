#include "data/sampler.h"

#include <algorithm>
#include <bit>

#include "core/philox.h"

namespace cleave::data {
namespace {

// More rounds than the four that theory requires, because the halves of a small domain have only a few bits.
constexpr int kRounds = 8;

}  // namespace

int64_t permuted(int64_t index, int64_t samples, uint64_t seed, int64_t epoch) {
  CHECK(0 <= index && index < samples, "index {} of {} samples", index, samples);
  const int half_bits = std::max(1, (int(std::bit_width(uint64_t(samples - 1))) + 1) / 2);
  const uint64_t mask = (uint64_t(1) << half_bits) - 1;
  const Philox random{.seed = seed, .stream = hash_name("data.sampler") + uint64_t(epoch)};
  uint64_t value = uint64_t(index);
  do {  // the domain has fewer than 4 * samples points: under four iterations on average
    uint64_t left = value >> half_bits, right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = left ^ (random.block(round << 32 | right)[0] & mask);
      left = right, right = mixed;
    }
    value = left << half_bits | right;
  } while (value >= uint64_t(samples));
  return int64_t(value);
}

void Sampler::check() const {
  CHECK(global_batch > 0, "a global batch of {} samples", global_batch);
  require(samples > 0, Exit::data, "--data: has no samples; use a longer text");
  require(!drop_last || samples >= global_batch, Exit::data,
          "--data: fewer samples than one step (got {}, expected at least {}, because incomplete batches are "
          "dropped); use more data, a smaller train_batch_size, or turn dataloader_drop_last off",
          samples, global_batch);
}

int64_t Sampler::steps_per_epoch() const {
  return drop_last ? samples / global_batch : ceil_div(samples, global_batch);
}

Position Sampler::position(int64_t step) const {
  CHECK(step >= first_step, "step {} of a training that continues at step {}", step, first_step);
  const int64_t skipped = std::ranges::upper_bound(skips, step) - skips.begin();
  const int64_t steps = steps_per_epoch(), taken = step - first_step + skipped;
  const int64_t rest = std::max<int64_t>(0, samples - first.sample);  // other --data may be shorter
  const int64_t left = drop_last ? rest / global_batch : ceil_div(rest, global_batch);
  if (taken < left) return {first.epoch, first.sample + taken * global_batch};
  return {first.epoch + 1 + (taken - left) / steps, (taken - left) % steps * global_batch};
}

int64_t Sampler::sample(int64_t step, int64_t at) const {
  CHECK(step >= 0 && 0 <= at && at < global_batch, "position {} of step {}, global batch {}", at, step,
        global_batch);
  const Position begin = position(step);
  const int64_t index = (begin.sample + at) % samples;
  return shuffle ? permuted(index, samples, seed, begin.epoch) : index;
}

}  // namespace cleave::data

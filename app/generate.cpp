#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "app/parse.h"
#include "app/pretrained.h"
#include "core/philox.h"

namespace cleave {
namespace {

struct Sampling {
  double temperature = 0.8;
  int64_t top_k = 0;
  uint64_t seed = 42;
};

// Draws from the softmax of logits / temperature, among the top_k when it is positive.
int32_t draw(std::span<const float> logits, const Sampling& s, int64_t index) {
  if (s.temperature <= 0) return int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return logits[size_t(a)] > logits[size_t(b)]; });
  if (s.top_k > 0 && s.top_k < int64_t(order.size())) order.resize(size_t(s.top_k));
  std::vector<double> sums;
  double sum = 0;
  for (int32_t t : order)
    sums.push_back(sum += std::exp((logits[size_t(t)] - logits[size_t(order[0])]) / s.temperature));
  const double at = Philox{s.seed, hash_name("generate")}.uniform(uint64_t(index)) * sum;
  const auto found = std::upper_bound(sums.begin(), sums.end(), at);
  return order[size_t(std::min<int64_t>(found - sums.begin(), int64_t(order.size()) - 1))];
}

// Adds tokens to the text and prints them on the first rank. Every rank has the same logits and draws the
// same token, so nothing has to be sent.
void continue_text(Pretrained& model, std::vector<int32_t> text, int64_t tokens, const Sampling& sampling,
                   bool prints) {
  const int64_t seq = model.seq_len();
  std::vector<int32_t> window(size_t(seq), 0);
  const std::vector<int32_t> no_targets(size_t(seq), kIgnoredTarget);
  for (int64_t i = 0; i < tokens; ++i) {
    // The newest seq tokens; what stands behind them is not seen, because attention is causal.
    const int64_t used = std::min<int64_t>(seq, int64_t(text.size()));
    std::copy(text.end() - used, text.end(), window.begin());
    const std::vector<float> logits =
        model.engine().predict(batch_of(window, no_targets), Range{used - 1, used});
    text.push_back(draw(logits, sampling, i));
    if (prints) std::fputc(text.back(), stdout), std::fflush(stdout);
  }
}

}  // namespace

int run_generate(const Arguments& arguments) {
  CLI::App app(
      "Text from a checkpoint, on any number of ranks.\n"
      "Example: cleave generate runs/quickstart/checkpoints --prompt \"In the beginning\" --tokens 200",
      "generate");
  PretrainedOptions o;
  std::string prompt = "\n";
  int64_t tokens = 200;
  Sampling sampling;
  add_options(app, o);
  app.add_option("--prompt", prompt, "text to continue");
  app.add_option("--tokens", tokens, "how many to add")->capture_default_str()->check(integer(0));
  app.add_option("--temperature", sampling.temperature, "0 takes the likeliest")
      ->capture_default_str()
      ->check(number(0));
  app.add_option("--top_k", sampling.top_k, "draw among the likeliest only (0: all)")
      ->capture_default_str()
      ->check(integer(0));
  app.add_option("--seed", sampling.seed)->capture_default_str()->check(integer(0));
  if (!parse(app, arguments)) return 0;
  require(!prompt.empty(), Exit::usage, "--prompt is empty; give at least one character to continue");

  Job job(o.ranks);
  return job.run([&] {
    Pretrained model(o, job);
    require(model.bytes(), Exit::usage, "{} was trained on token ids; generate needs a byte model", o.dir);
    std::vector<int32_t> text;
    for (const char c : prompt) text.push_back(int32_t(uint8_t(c)));
    if (job.first()) std::fputs(prompt.c_str(), stdout);
    continue_text(model, text, tokens, sampling, job.first());
    if (job.first()) std::fputc('\n', stdout);
    return 0;
  });
}

}  // namespace cleave

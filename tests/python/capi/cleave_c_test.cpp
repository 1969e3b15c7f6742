// Tests of the C interface as another language calls it: one rank, with a loss that has steps in
// closed form.
#include "python/capi/cleave_c.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/scratch.h"

namespace cleave::testing {
namespace {

constexpr const char* kConfig = R"({
  "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "gradient_clipping": 0,
  "optimizer": {"type": "SGD", "params": {"lr": 0.5}}, "zero_optimization": {"stage": 3}})";

// Copies a returned text and frees it.
std::string taken(char* text) {
  std::string out = text ? text : "";
  cleave_free_text(text);
  return out;
}

class CInterface : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cleave_job_open(R"({"device": "cpu", "threads": 1})", &job_), 0) << cleave_error();
    ASSERT_EQ(cleave_job_connect(job_, 60), 0) << cleave_error();
  }
  void TearDown() override {
    cleave_engine_free(engine_);
    EXPECT_EQ(cleave_job_close(job_, nullptr, 0), 0) << cleave_error();
  }
  static std::string units_of(int second_group) {
    return R"([{"name": "first", "frozen": false, "group": 0, "parameters": [["w", [2, 3], true], ["b", [2], false]]},
            {"name": "second", "frozen": false, "group": )" +
           std::to_string(second_group) +
           R"(, "parameters": [["deep", [1, 2, 1, 2, 1], true], ["alone", [], false]]}])";
  }
  int make(const char* config, cleave_engine_options options = {}, int second_group = 0) {
    const std::string units = units_of(second_group);
    return cleave_engine_make(job_, config, "test.json", "a model", units.c_str(), &options, &engine_);
  }
  void put(const char* name, std::vector<float> values) {
    ASSERT_EQ(cleave_put_state(engine_, "master", name, int64_t(values.size()), values.data()), 0)
        << cleave_error();
  }
  std::vector<float> get(const char* name, size_t count) {
    std::vector<float> values(count);
    EXPECT_EQ(cleave_get_state(engine_, "master", name, values.data()), 0) << cleave_error();
    return values;
  }
  // Runs a micro-batch of the loss sum(w^2) / 2 over all parameters of the unit; its gradient is w.
  void micro(int unit, std::vector<int64_t> numels, bool last) {
    double scale = 0;
    ASSERT_EQ(cleave_scale(engine_, &scale), 0) << cleave_error();
    ASSERT_EQ(cleave_begin_pass(engine_, 0, last), 0) << cleave_error();
    std::vector<void*> at(numels.size());
    ASSERT_EQ(cleave_acquire(engine_, unit, at.data()), 0) << cleave_error();
    std::vector<std::vector<float>> gradients;
    for (size_t p = 0; p < numels.size(); ++p) {
      const auto* w = static_cast<const float*>(at[p]);
      gradients.emplace_back(w, w + numels[p]);
      for (float& g : gradients.back()) g *= float(scale);
    }
    ASSERT_EQ(cleave_release(engine_, unit), 0) << cleave_error();
    std::vector<const void*> given;
    for (const std::vector<float>& g : gradients) given.push_back(g.data());
    const std::vector<int32_t> types(numels.size(), CLEAVE_FP32);
    ASSERT_EQ(cleave_give(engine_, unit, given.data(), types.data()), 0) << cleave_error();
    ASSERT_EQ(cleave_end_pass(engine_), 0) << cleave_error();
  }
  cleave_step_result step(const std::vector<cleave_rates>& rates = {}) {
    EXPECT_EQ(cleave_begin_step(engine_, 0), 0) << cleave_error();
    micro(0, {6, 2}, false), micro(0, {6, 2}, true);
    const double losses[] = {1, 3};
    cleave_step_result result{};
    EXPECT_EQ(cleave_finish_step(engine_, losses, 2, rates.data(), int(rates.size()), &result), 0)
        << cleave_error();
    return result;
  }

  cleave_job* job_ = nullptr;
  cleave_engine* engine_ = nullptr;
};

TEST_F(CInterface, TakesStepsWithAKnownResult) {
  ASSERT_EQ(make(kConfig), 0) << cleave_error();
  put("w", {1, 2, 3, 4, 5, 6}), put("b", {-8, 0}), put("deep", {7, 9, -1, 3}), put("alone", {11});
  ASSERT_EQ(cleave_publish(engine_), 0) << cleave_error();
  const cleave_step_result first = step();
  EXPECT_EQ(first.step, 1);
  EXPECT_EQ(first.skipped, 0);
  EXPECT_DOUBLE_EQ(first.loss, 2);
  EXPECT_DOUBLE_EQ(first.lr, 0.5);
  EXPECT_NEAR(first.grad_norm, std::sqrt(91 + 64), 1e-6) << "of the mean of two equal micro-batches";
  EXPECT_EQ(get("w", 6), (std::vector<float>{0.5, 1, 1.5, 2, 2.5, 3})) << "w - 0.5 w";
  EXPECT_EQ(get("b", 2), (std::vector<float>{-4, 0}));
  EXPECT_EQ(get("deep", 4), (std::vector<float>{7, 9, -1, 3}))
      << "a unit that was not given has gradient zero";
  EXPECT_EQ(get("alone", 1), (std::vector<float>{11}));
}

TEST_F(CInterface, GivesTheGradientBetweenTheLastPassAndTheUpdate) {
  ASSERT_EQ(make(kConfig), 0) << cleave_error();
  put("w", {1, 2, 3, 4, 5, 6}), put("b", {-8, 0}), put("deep", {7, 9, -1, 3});
  ASSERT_EQ(cleave_publish(engine_), 0) << cleave_error();
  ASSERT_EQ(cleave_begin_step(engine_, 0), 0) << cleave_error();
  micro(0, {6, 2}, false);
  std::vector<float> gradient(6);
  EXPECT_EQ(cleave_get_state(engine_, "gradient", "w", gradient.data()), 2);
  EXPECT_NE(std::string(cleave_error()).find("between the last backward of a step and its update"),
            std::string::npos)
      << cleave_error();
  micro(0, {6, 2}, true);
  ASSERT_EQ(cleave_get_state(engine_, "gradient", "w", gradient.data()), 0) << cleave_error();
  EXPECT_EQ(gradient, (std::vector<float>{1, 2, 3, 4, 5, 6})) << "of the mean of two equal micro-batches";
  gradient.resize(4);
  ASSERT_EQ(cleave_get_state(engine_, "gradient", "deep", gradient.data()), 0) << cleave_error();
  EXPECT_EQ(gradient, std::vector<float>(4, 0)) << "of a unit that was not given";
  EXPECT_EQ(cleave_put_state(engine_, "gradient", "deep", 4, gradient.data()), 2) << "no clipping";
  EXPECT_NE(std::string(cleave_error()).find("deep may be updated already"), std::string::npos)
      << cleave_error();
  cleave_step_result result{};
  ASSERT_EQ(cleave_finish_step(engine_, nullptr, 0, nullptr, 0, &result), 0) << cleave_error();
  EXPECT_EQ(get("w", 6), (std::vector<float>{0.5, 1, 1.5, 2, 2.5, 3})) << "w - 0.5 w";
  EXPECT_EQ(cleave_get_state(engine_, "gradient", "w", gradient.data()), 2) << "after the update";
  cleave_rates rates{};
  constexpr const char* kSchedule =
      R"({"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_type": "linear"}})";
  ASSERT_EQ(cleave_schedule_rates(kSchedule, 0.5, 3, &rates), 0) << cleave_error();
  EXPECT_DOUBLE_EQ(rates.lr, 0.25) << "2 / 4 of the optimizer's own";
  EXPECT_EQ(cleave_schedule_rates(R"({"type": "WarmupLR", "params": {"warmup": 4}})", 0.5, 3, &rates), 2);
}

TEST_F(CInterface, TakesTheRatesOfTheCaller) {
  cleave_engine_options options{};
  options.rates_given = 1;
  ASSERT_EQ(make(kConfig, options), 0) << cleave_error();
  put("w", {8, 8, 8, 8, 8, 8}), put("b", {8, 8});
  ASSERT_EQ(cleave_publish(engine_), 0) << cleave_error();
  EXPECT_DOUBLE_EQ(step({{.lr = 0.25, .momentum = -1, .beta2 = -1, .weight_decay = -1}}).lr, 0.25);
  EXPECT_EQ(get("b", 2), (std::vector<float>{6, 6})) << "8 - 0.25 * 8";
  cleave_step_result result{};
  ASSERT_EQ(cleave_begin_step(engine_, 0), 0);
  EXPECT_EQ(cleave_finish_step(engine_, nullptr, 0, nullptr, 0, &result), 1);
  EXPECT_NE(std::string(cleave_error()).find("wrong number of rate groups (got 0, expected 1)"),
            std::string::npos)
      << cleave_error();
}

TEST_F(CInterface, TakesRatesAndWeightDecayOfEachGroup) {
  cleave_engine_options options{};
  options.rates_given = 1;
  ASSERT_EQ(make(kConfig, options, 1), 0) << cleave_error();
  put("w", {8, 8, 8, 8, 8, 8}), put("b", {8, 8}), put("deep", {8, 16, 0, -4}), put("alone", {8});
  ASSERT_EQ(cleave_publish(engine_), 0) << cleave_error();
  step({{.lr = 0.25, .momentum = -1, .beta2 = -1, .weight_decay = 0.5},
        {.lr = 0.5, .momentum = -1, .beta2 = -1, .weight_decay = 0.25}});
  EXPECT_EQ(get("w", 6), std::vector<float>(6, 5)) << "8 - 0.25 * (8 + 0.5 * 8)";
  EXPECT_EQ(get("b", 2), (std::vector<float>{6, 6})) << "which does not decay";
  EXPECT_EQ(get("deep", 4), (std::vector<float>{7, 14, 0, -3.5})) << "x - 0.5 * 0.25 x, without a gradient";
  EXPECT_EQ(get("alone", 1), (std::vector<float>{8}));
}

// A GPT-2 with one block that the engine computes.
class COwnModel : public CInterface {
 protected:
  static constexpr int kVocab = 8, kWidth = 4, kLength = 3;
  static constexpr const char* kModel =
      R"({"model_type": "gpt2", "vocab_size": 8, "n_positions": 4, "n_embd": 4,
      "n_layer": 1, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0})";
  static constexpr const char* kOne = R"({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0,
      "optimizer": {"type": "SGD", "params": {"lr": 0.5}}, "cleave": {"sequence_length": 4}})";

  // Parameter shapes as in transformers; matrices are [in, out].
  static std::map<std::string, std::vector<int64_t>> shapes() {
    std::map<std::string, std::vector<int64_t>> of{{"wte.weight", {kVocab, kWidth}},
                                                   {"wpe.weight", {4, kWidth}}};
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
      of[name + ".bias"] = {shape.back()}, of[name + ".weight"] = std::move(shape);
    };
    for (const char* norm : {"h.0.ln_1", "h.0.ln_2", "ln_f"}) add(norm, {kWidth});
    add("h.0.attn.c_attn", {kWidth, 3 * kWidth}), add("h.0.attn.c_proj", {kWidth, kWidth});
    add("h.0.mlp.c_fc", {kWidth, 4 * kWidth}), add("h.0.mlp.c_proj", {4 * kWidth, kWidth});
    return of;
  }
  int make_model(const std::map<std::string, std::vector<int64_t>>& of,
                 const char* name = "GPT2LMHeadModel") {
    nlohmann::json parameters = nlohmann::json::array();
    for (const auto& [its, shape] : of) parameters.push_back({"transformer." + its, shape, false});
    const nlohmann::json units = {
        {{"name", "all"}, {"frozen", false}, {"group", 0}, {"parameters", parameters}}};
    cleave_engine_options options{};
    options.model_config = kModel;
    return cleave_engine_make(job_, kOne, "test.json", name, units.dump().c_str(), &options, &engine_);
  }
  double loss() {
    double loss = 0;
    EXPECT_EQ(cleave_loss(engine_, &samples_, &loss), 0) << cleave_error();
    return loss;
  }
  static constexpr int64_t kTokens[] = {1, 7, 3, 5, 0, 2}, kMask[] = {1, 1, 1, 1, 1, 0},
                           kLabels[] = {-100, 7, 3, -100, 0, -100};
  cleave_samples samples_{kTokens, kLabels, kMask, 2, kLength, 0};
};

TEST_F(COwnModel, HasTheLossAndTheGradientsOfItsFamily) {
  ASSERT_EQ(make_model(shapes()), 0) << cleave_error();
  std::map<std::string, std::vector<float>> values;
  for (const auto& [name, shape] : shapes()) {
    int64_t numel = 1;
    for (const int64_t n : shape) numel *= n;
    for (int64_t i = 0; i < numel; ++i)
      values[name].push_back(float(0.8 * std::sin(double(i * i + 3 * i) + double(name.size()))));
  }
  EXPECT_NEAR(loss(), std::log(kVocab), 1e-6) << "all values are zero, and all classes are as likely";
  for (const auto& [name, of] : values) put(("transformer." + name).c_str(), of);
  ASSERT_EQ(cleave_publish(engine_), 0) << cleave_error();
  const double here = loss();
  ASSERT_EQ(cleave_begin_step(engine_, 0), 0) << cleave_error();
  double trained = 0;
  ASSERT_EQ(cleave_train_micro_batch(engine_, &samples_, &trained), 0) << cleave_error();
  EXPECT_DOUBLE_EQ(trained, here);
  std::map<std::string, std::vector<float>> gradients;
  for (auto& [name, of] : values)
    ASSERT_EQ(cleave_get_state(engine_, "gradient", ("transformer." + name).c_str(),
                               (gradients[name] = std::vector<float>(of.size())).data()),
              0)
        << cleave_error();
  // Compares gradients with differences of the loss, along one direction per parameter.
  for (auto& [name, of] : values) {
    double along = 0, differs[2];
    for (int side = 0; side < 2; ++side) {
      std::vector<float> moved = of;
      for (size_t i = 0; i < of.size(); ++i)
        moved[i] += float((side ? -3e-3 : 3e-3) * std::cos(double(5 * i)));
      put(("transformer." + name).c_str(), moved);
      ASSERT_EQ(cleave_publish(engine_), 0) << cleave_error();
      differs[side] = loss();
    }
    put(("transformer." + name).c_str(), of);
    for (size_t i = 0; i < of.size(); ++i) along += gradients[name][i] * std::cos(double(5 * i));
    EXPECT_NEAR((differs[0] - differs[1]) / 6e-3, along, 2e-3 * std::max(0.1, std::fabs(along))) << name;
  }
  ASSERT_EQ(cleave_publish(engine_), 0) << cleave_error();
  cleave_step_result result{};
  ASSERT_EQ(cleave_finish_step(engine_, nullptr, 0, nullptr, 0, &result), 0) << cleave_error();
  EXPECT_NEAR(result.loss, here, 1e-12);
  const std::vector<float> after = get("transformer.h.0.mlp.c_fc.weight", 4 * kWidth * kWidth);
  for (size_t i = 0; i < after.size(); ++i)
    EXPECT_NEAR(after[i], values["h.0.mlp.c_fc.weight"][i] - 0.5 * gradients["h.0.mlp.c_fc.weight"][i], 1e-6);
}

TEST_F(COwnModel, ReportsDifferencesFromTheFamily) {
  const auto says = [&](const char* what) {
    EXPECT_NE(std::string(cleave_error()).find(what), std::string::npos) << cleave_error();
  };
  EXPECT_EQ(make_model(shapes(), "GPT2Model"), 2);
  says(
      "cleave.native: the module is a GPT2Model with a config of the family gpt2 (expected a "
      "GPT2LMHeadModel");
  auto of = shapes();
  of["h.0.attn.c_attn.lora_A"] = {2, kWidth};
  EXPECT_EQ(make_model(of), 2);
  says("the module has a parameter transformer.h.0.attn.c_attn.lora_A that a GPT2LMHeadModel does not have");
  of = shapes(), of.erase("ln_f.bias");
  EXPECT_EQ(make_model(of), 2);
  says("the module has no parameter transformer.ln_f.bias");
  of = shapes(), of["h.0.mlp.c_fc.weight"] = {4 * kWidth, kWidth};
  EXPECT_EQ(make_model(of), 2);
  says(" has the shape [16, 4] in the module (expected [4, 16] from its config)");

  ASSERT_EQ(make_model(shapes()), 0) << cleave_error();
  double loss = 0;
  samples_.length = 5;
  EXPECT_EQ(cleave_loss(engine_, &samples_, &loss), 2);
  says("2 samples with 5 tokens, expected at most 2 samples with 4");
  samples_.length = kLength;
  static constexpr int64_t kLeft[] = {0, 1, 1, 1, 1, 1}, kLarge[] = {1, 7, 8, 5, 0, 2};
  samples_.mask = kLeft;
  EXPECT_EQ(cleave_loss(engine_, &samples_, &loss), 2);
  says("attention_mask: sample 0 has padding before its token 1");
  samples_.mask = kMask, samples_.labels = kTokens;
  EXPECT_EQ(cleave_loss(engine_, &samples_, &loss), 2);
  says("labels: sample 1 has 2 at position 2, which attention_mask marks as padding; use -100 there");
  samples_.labels = kLabels, samples_.tokens = kLarge;
  EXPECT_NE(cleave_loss(engine_, &samples_, &loss), 0);
  says("sample 0 has the token 8 at position 2; GPT2LMHeadModel has 8 of them");
  samples_.tokens = kTokens;
  ASSERT_EQ(cleave_begin_step(engine_, 0), 0) << cleave_error();
  ASSERT_EQ(cleave_train_micro_batch(engine_, &samples_, &loss), 0) << cleave_error();
  EXPECT_EQ(cleave_train_micro_batch(engine_, &samples_, &loss), 2);
  says("gradient_accumulation_steps: too many micro-batches in a step (expected 1)");
}

// value -= the sum of all gradients so far, which is the state; records its calls.
struct Sums {
  std::vector<std::string> parts;
  int fails_at = -1;
  static int update(void* context, const cleave_update* part) {
    auto& self = *static_cast<Sums*>(context);
    if (int(self.parts.size()) == self.fails_at) return 1;
    self.parts.push_back(fmt::format("{}.{} [{}, {}) step {}", part->unit, part->parameter, part->begin,
                                     part->end, part->step));
    if (part->gradient_dtype != CLEAVE_FP32 || part->on_host || part->states[1]) return 1;
    for (int64_t i = 0; i < part->end - part->begin; ++i) {
      part->states[0][i] += float(part->gradient_scale) * static_cast<const float*>(part->gradient)[i];
      part->value[i] -= part->states[0][i];
    }
    return 0;
  }
};

TEST_F(CInterface, PassesPartsOfParametersToTheUpdate) {
  Sums sums;
  static const char* const kStates[] = {"sum"};
  cleave_engine_options options{};
  options.update = &Sums::update, options.update_context = &sums;
  options.states = kStates, options.state_count = 1;
  ASSERT_EQ(make(kConfig, options), 0) << cleave_error();
  put("w", {1, 2, 3, 4, 5, 6}), put("b", {-8, 0}), put("deep", {7, 9, -1, 3}), put("alone", {11});
  ASSERT_EQ(cleave_publish(engine_), 0) << cleave_error();
  step();
  EXPECT_EQ(get("w", 6), std::vector<float>(6, 0)) << "w - w";
  EXPECT_EQ(get("deep", 4), (std::vector<float>{7, 9, -1, 3}));
  step();
  EXPECT_EQ(get("w", 6), (std::vector<float>{-1, -2, -3, -4, -5, -6})) << "0 - (w + 0)";
  std::vector<float> state(6);
  ASSERT_EQ(cleave_get_state(engine_, kStates[0], "w", state.data()), 0) << cleave_error();
  EXPECT_EQ(state, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  std::sort(sums.parts.begin(), sums.parts.end());
  EXPECT_EQ(sums.parts,
            (std::vector<std::string>{"0.0 [0, 6) step 1", "0.0 [0, 6) step 2", "0.1 [0, 2) step 1",
                                      "0.1 [0, 2) step 2", "1.0 [0, 4) step 1", "1.0 [0, 4) step 2",
                                      "1.1 [0, 1) step 1", "1.1 [0, 1) step 2"}));
  sums.fails_at = int(sums.parts.size());
  cleave_step_result result{};
  ASSERT_EQ(cleave_begin_step(engine_, 0), 0);
  EXPECT_EQ(cleave_finish_step(engine_, nullptr, 0, nullptr, 0, &result), 2);
  EXPECT_NE(std::string(cleave_error()).find("optimizer: the update function of the script failed"),
            std::string::npos);
}

TEST_F(CInterface, PlansTheAllocationOfAnEngineAndFailsIfItDoesNotFit) {
  ASSERT_EQ(make(kConfig), 0) << cleave_error();
  char *facts = nullptr, *plan = nullptr;
  ASSERT_EQ(cleave_engine_facts(engine_, &facts), 0) << cleave_error();
  cleave_engine_options options{};
  const std::string units = units_of(0);
  const auto planned = [&](int world) {
    return cleave_plan(kConfig, "test.json", "a model", units.c_str(), &options, world, 8, 100, &plan);
  };
  ASSERT_EQ(planned(1), 0) << cleave_error();
  const auto said = nlohmann::json::parse(taken(plan));
  auto memory = said["ranks"][0]["memory"];
  memory["device"]["activations"] = memory["device"]["activations"].get<int64_t>() - 100;
  EXPECT_EQ(memory, nlohmann::json::parse(taken(facts))["live"]) << "but for the caller's own 100 bytes";
  EXPECT_EQ(said["activations"], 100);
  options.device_bytes = 64;
  EXPECT_EQ(planned(2), 3);
  EXPECT_NE(std::string(cleave_error()).find("the plan does not fit"), std::string::npos) << cleave_error();
  const char* large =
      R"([{"name": "large", "frozen": false, "group": 0, "parameters": [["x", [1000000, 1000000], true]]}])";
  cleave_engine* none = nullptr;
  options.device_bytes = 0;
  EXPECT_EQ(cleave_engine_make(job_, kConfig, "test.json", "a model", large, &options, &none), 3);
  EXPECT_NE(std::string(cleave_error()).find("host memory: 1 of 1 ranks on this machine need"),
            std::string::npos)
      << cleave_error();
}

TEST_F(CInterface, SavesAndLoads) {
  constexpr int32_t kAll = CLEAVE_LOAD_OPTIMIZER | CLEAVE_LOAD_SCHEDULE | CLEAVE_LOAD_STEPS;
  const Scratch scratch;
  const std::string folder = scratch.path("saved");
  ASSERT_EQ(make(kConfig), 0) << cleave_error();
  put("b", {3, 4});
  ASSERT_EQ(cleave_publish(engine_), 0);
  step();
  ASSERT_EQ(cleave_save_checkpoint(engine_, folder.c_str(), "here", R"({"mine": 5})"), 0) << cleave_error();
  put("b", {0, 0});
  char* loaded = nullptr;
  ASSERT_EQ(cleave_load_checkpoint(engine_, folder.c_str(), "latest", kAll, &loaded), 0) << cleave_error();
  EXPECT_EQ(taken(loaded), R"({"changed":[],"client":{"mine":5},"path":")" + folder + R"(/here"})");
  EXPECT_EQ(get("b", 2), (std::vector<float>{1.5, 2}));
  EXPECT_EQ(cleave_load_checkpoint(engine_, folder.c_str(), "gone", kAll, &loaded), 4);
  EXPECT_NE(std::string(cleave_error()).find("gone"), std::string::npos) << cleave_error();
}

TEST_F(CInterface, ReadsCheckpointsWithoutAnEngine) {
  const Scratch scratch;
  const std::string folder = scratch.path("saved");
  ASSERT_EQ(make(kConfig), 0) << cleave_error();
  put("w", {1, 2, 3, 4, 5, 6}), put("b", {3, 4});
  ASSERT_EQ(cleave_publish(engine_), 0);
  ASSERT_EQ(cleave_save_checkpoint(engine_, folder.c_str(), "here", R"({"mine": 5})"), 0) << cleave_error();
  cleave_checkpoint* saved = nullptr;
  ASSERT_EQ(cleave_checkpoint_open(folder.c_str(), "latest", &saved), 0) << cleave_error();
  char* facts = nullptr;
  ASSERT_EQ(cleave_checkpoint_facts(saved, &facts), 0) << cleave_error();
  const std::string text = taken(facts);
  for (const char* fact : {R"("client":{"mine":5})", R"("w":[2,3])", R"("step":0)", R"("deepspeed":false)"})
    EXPECT_NE(text.find(fact), std::string::npos) << fact << " in " << text;
  std::vector<float> w(6);
  ASSERT_EQ(cleave_checkpoint_read(saved, "master", "w", 6, w.data()), 0) << cleave_error();
  EXPECT_EQ(w, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(cleave_checkpoint_read(saved, "exp_avg", "w", 6, w.data()), 4);
  EXPECT_NE(std::string(cleave_error()).find(": exp_avg of w"), std::string::npos) << cleave_error();
  cleave_checkpoint_close(saved);
  EXPECT_EQ(cleave_checkpoint_open(folder.c_str(), "gone", &saved), 4);
}

TEST_F(CInterface, ReportsUnitsThatMoveBetweenUses) {
  ASSERT_EQ(make(R"({"train_batch_size": 1, "optimizer": {"type": "SGD"},
                     "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},
                                           "stage3_param_persistence_threshold": 8}})"),
            0)
      << cleave_error();
  int32_t first = 0, second = 1;
  ASSERT_EQ(cleave_gathers(engine_, 0, &first) + cleave_gathers(engine_, 1, &second), 0) << cleave_error();
  EXPECT_EQ(first, 1) << "8 elements, in host memory";
  EXPECT_EQ(second, 0) << "5 elements, below the threshold";
}

TEST_F(CInterface, FailsOnInvalidCallsWithTheReason) {
  EXPECT_EQ(make(R"({"train_batch_siz": 1})"), 2);
  EXPECT_NE(std::string(cleave_error()).find("did you mean \"train_batch_size\"?"), std::string::npos)
      << cleave_error();
  EXPECT_EQ(make(R"({"train_batch_size": 1, "tensor_parallel": {"autotp_size": 2}})"), 2) << cleave_error();
  EXPECT_EQ(cleave_job_open(R"({"devise": "cpu"})", &job_), 2);
  EXPECT_NE(std::string(cleave_error()).find("devise"), std::string::npos) << cleave_error();
  ::setenv("CLEAVE_NCCLL", "x", 1);
  EXPECT_EQ(cleave_job_open(R"({"device": "cpu"})", &job_), 2);
  ::unsetenv("CLEAVE_NCCLL");
  EXPECT_NE(std::string(cleave_error()).find("did you mean CLEAVE_NCCL?"), std::string::npos)
      << cleave_error();
  EXPECT_EQ(cleave_begin_step(nullptr, 0), 1);
  EXPECT_NE(std::string(cleave_error()).find("engine is null"), std::string::npos) << cleave_error();
  ASSERT_EQ(make(kConfig), 0) << cleave_error();
  EXPECT_EQ(cleave_begin_pass(engine_, 0, 1), 1) << "the last pass of no step";
  EXPECT_EQ(cleave_release(engine_, 7), 1);
  EXPECT_NE(std::string(cleave_error()).find("unit 7 of 2"), std::string::npos) << cleave_error();
  std::vector<float> value(6);
  EXPECT_EQ(cleave_get_state(engine_, "master", "v", value.data()), 2);
  EXPECT_NE(std::string(cleave_error()).find("has no parameter v"), std::string::npos) << cleave_error();
  EXPECT_EQ(cleave_get_state(engine_, "exp_avg", "w", value.data()), 2)
      << "SGD without momentum has no state";
  EXPECT_NE(std::string(cleave_error()).find("parameter: unknown state (expected one of master, got exp_avg"),
            std::string::npos)
      << cleave_error();
  EXPECT_EQ(cleave_put_state(engine_, "master", "w", 5, value.data()), 1);
}

TEST_F(CInterface, GivesTheEffectiveValueOfEveryKey) {
  char* read = nullptr;
  ASSERT_EQ(cleave_job_read_config(job_, kConfig, "test.json", "{}", &read), 0) << cleave_error();
  const auto said = nlohmann::json::parse(taken(read));
  EXPECT_EQ(said["values"]["train_batch_size"], 2);
  EXPECT_EQ(said["values"]["zero_optimization.stage"], 3);
  EXPECT_EQ(said["warnings"], "");
  const char* loose = R"({"train_batch_size": 1, "wall_clock_breakdown": 1, "mine": 2})";
  ASSERT_EQ(cleave_job_read_config(job_, loose, "test.json", "{}", &read), 0) << cleave_error();
  const auto warned = nlohmann::json::parse(taken(read));
  EXPECT_EQ(warned["values"]["wall_clock_breakdown"], true);
  EXPECT_NE(warned["warnings"].get<std::string>().find("1:49: wall_clock_breakdown: 1 is read as true"),
            std::string::npos)
      << warned["warnings"];
  // Both fronts report times, arithmetic and collectives.
  const char* reports =
      R"({"train_batch_size": 1, "wall_clock_breakdown": true, "comms_logger": {}, "flops_profiler": {"enabled": true}})";
  ASSERT_EQ(cleave_job_read_config(job_, reports, "test.json", "{}", &read), 0) << cleave_error();
  EXPECT_EQ(nlohmann::json::parse(taken(read))["warnings"], "");
  // The ranks met with 60 s.
  for (const auto& [asked, part] :
       {std::pair{7, "comm_timeout_s is 7, but the ranks met before"}, {60, ""}}) {
    const std::string late =
        fmt::format(R"({{"train_batch_size": 1, "cleave": {{"comm_timeout_s": {}}}}})", asked);
    ASSERT_EQ(cleave_job_read_config(job_, late.c_str(), "test.json", "{}", &read), 0) << cleave_error();
    const std::string warnings = nlohmann::json::parse(taken(read))["warnings"];
    EXPECT_EQ(warnings.empty(), std::string(part).empty()) << warnings;
    EXPECT_NE(warnings.find(part), std::string::npos) << warnings;
  }
  // Sections of the script have the positions of the file.
  const char* lines =
      "{\"train_batch_size\": 1,\n \"fp16\": {\"enabled\": false},\n \"wall_clock_breakdown\": \"often\"}";
  const char* sections =
      R"({"fp16": {"enabled": true, "none": 1}, "optimizer": {"of": 1}, "scheduler": null})";
  EXPECT_EQ(cleave_job_read_config(job_, lines, "test.json", sections, &read), 2);
  for (const char* wanted :
       {"test.json:2:2: fp16.none: unknown key", "test.json:1:1: optimizer.of: unknown key",
        "test.json:3:26: wall_clock_breakdown: "})
    EXPECT_NE(std::string(cleave_error()).find(wanted), std::string::npos) << cleave_error();
  EXPECT_EQ(cleave_job_read_config(job_, R"({"train_batch_size": 0})", "test.json", "{}", &read), 2);
  EXPECT_NE(std::string(cleave_error()).find("test.json: has errors:"), std::string::npos) << cleave_error();
}

}  // namespace
}  // namespace cleave::testing

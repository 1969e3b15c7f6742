#include "model/config_json.h"

#include <nlohmann/json.hpp>

namespace cleave {
namespace {

using nlohmann::json;

// The fields of one object; what is wrong with them is collected, so that all of it is said at once. null
// means absent, as in transformers.
class Fields {
 public:
  Fields(const json& object, std::string prefix, std::vector<std::string>& problems)
      : object_(object), prefix_(std::move(prefix)), problems_(problems) {}

  bool has(const char* name) const { return object_.contains(name) && !object_[name].is_null(); }
  int64_t count(const char* name, int64_t most) const {
    return has(name) ? count(name, most, 0) : missing(name);
  }
  int64_t count(const char* name, int64_t most, int64_t otherwise) const {
    if (!has(name)) return otherwise;
    const json& v = object_[name];
    if (v.is_number_integer() && v > 0 && v <= most) return v;
    return wrong(name, fmt::format("a whole number from 1 to {}", most).c_str());
  }
  double number(const char* name, double otherwise) const {
    if (!has(name)) return otherwise;
    const json& v = object_[name];
    return v.is_number() && v >= 0 ? double(v) : double(wrong(name, "a number, not negative"));
  }
  double number(const char* name) const { return has(name) ? number(name, 0) : double(missing(name)); }
  bool flag(const char* name, bool otherwise) const {
    if (!has(name)) return otherwise;
    return object_[name].is_boolean() ? bool(object_[name]) : wrong(name, "true or false") != 0;
  }
  std::string word(const char* name, const char* otherwise) const {
    if (!has(name)) return otherwise;
    if (object_[name].is_string()) return object_[name];
    return wrong(name, "a text"), otherwise;
  }
  // Refuses every value but this one; absent is `otherwise`.
  void only(const char* name, const json& wanted, const json& otherwise) const {
    const json& v = has(name) ? object_[name] : otherwise;
    if (v != wanted) refuse(name, fmt::format("{} is not built; only {} is", v.dump(), wanted.dump()));
  }
  void absent(const char* name, const char* what) const {
    if (has(name)) refuse(name, fmt::format("{} is not built", what));
  }
  Fields inner(const char* name) const {
    static const json empty = json::object();
    const bool object = has(name) && object_[name].is_object();
    if (has(name) && !object) wrong(name, "an object");
    return {object ? object_[name] : empty, prefix_ + name + ".", problems_};
  }
  void refuse(const char* name, const std::string& why) const {
    problems_.push_back(prefix_ + name + ": " + why);
  }

 private:
  int64_t missing(const char* name) const { return refuse(name, "missing"), 0; }
  int64_t wrong(const char* name, const char* wanted) const {
    const std::string got = object_[name].dump(-1, ' ', true, json::error_handler_t::replace);
    return refuse(name, fmt::format("{} wanted, got {}", wanted, got.substr(0, 60))), 0;
  }

  const json& object_;
  std::string prefix_;
  std::vector<std::string>& problems_;
};

// What no published model comes near. Sizes below these are multiplied without a thought of overflow.
constexpr int64_t kMostIds = (int64_t{1} << 31) - 1, kWidest = 1 << 20, kMostLayers = 10'000;
constexpr double kMostParameters = 1e15;

double parameters_of(const GptConfig& c) {
  const double width = double(c.width);
  return double(c.layers) * 12 * width * width + double(c.vocab + c.positions) * width;
}

double parameters_of(const LlamaConfig& c) {
  const double width = double(c.width), attention = double(c.head_dim) * double(2 * c.heads + 2 * c.kv_heads);
  return double(c.layers) * width * (attention + 3 * double(c.mlp_width)) + 2 * double(c.vocab) * width;
}

Activation activation_of(const Fields& f) {
  const std::string name = f.word("activation_function", "gelu_new");
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return Activation::gelu_tanh;
  if (name == "gelu") return Activation::gelu_erf;
  if (name != "relu") f.refuse("activation_function", name + " is not built; gelu_new, gelu and relu are");
  return Activation::relu;
}

GptConfig read_gpt2(const Fields& f) {
  GptConfig c;
  c.vocab = f.count("vocab_size", kMostIds), c.positions = f.count("n_positions", kMostIds);
  c.width = f.count("n_embd", kWidest), c.layers = f.count("n_layer", kMostLayers);
  c.heads = f.count("n_head", kWidest);
  c.norm_eps = float(f.number("layer_norm_epsilon", 1e-5));
  c.activation = activation_of(f);
  c.dropout = float(f.number("resid_pdrop", 0.1));
  if (f.number("embd_pdrop", 0.1) != f.number("resid_pdrop", 0.1))
    f.refuse("embd_pdrop", "another value than resid_pdrop is not built");
  f.only("attn_pdrop", 0.0, 0.1);
  f.only("n_inner", 4 * c.width, 4 * c.width);
  f.only("tie_word_embeddings", true, true);
  f.only("scale_attn_weights", true, true);
  f.only("scale_attn_by_inverse_layer_idx", false, false);
  f.only("add_cross_attention", false, false);
  return c;
}

// transformers 5 writes rope_parameters, with the base in it; transformers 4 rope_scaling and, beside it, the
// base.
void read_rope(const Fields& f, LlamaConfig& c) {
  const Fields rope = f.inner(f.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  c.rope_theta = rope.number("rope_theta", f.number("rope_theta", 10000));
  if (c.rope_theta <= 1) f.refuse("rope_theta", "must be above 1");
  rope.only("partial_rotary_factor", 1.0, 1.0);
  const std::string type = rope.word("rope_type", rope.word("type", "default").c_str());
  if (type == "default") return;
  c.rope.kind = type == "llama3" ? RopeScaling::Kind::llama3 : RopeScaling::Kind::linear;
  if (type != "llama3" && type != "linear")
    return rope.refuse("rope_type", type + " is not built; default, linear and llama3 are");
  c.rope.factor = rope.number("factor");
  if (c.rope.factor < 1) rope.refuse("factor", "must be at least 1");
  if (type == "linear") return;
  c.rope.low_freq_factor = rope.number("low_freq_factor");
  c.rope.high_freq_factor = rope.number("high_freq_factor");
  c.rope.original_positions = rope.count("original_max_position_embeddings", kMostIds);
  if (c.rope.high_freq_factor <= c.rope.low_freq_factor)
    rope.refuse("high_freq_factor", "must be above low_freq_factor");
}

void refuse_windows(const Fields& f, const json& object) {
  f.only("use_sliding_window", false, false);
  for (const json& type : object.value("layer_types", json::array()))
    if (type != "full_attention")
      return f.refuse("layer_types", type.dump() + " is not built; only \"full_attention\" is");
}

LlamaConfig read_llama(const Fields& f, const json& object, bool qwen2) {
  LlamaConfig c;
  c.vocab = f.count("vocab_size", kMostIds), c.width = f.count("hidden_size", kWidest);
  c.layers = f.count("num_hidden_layers", kMostLayers),
  c.mlp_width = f.count("intermediate_size", 16 * kWidest);
  c.positions = f.count("max_position_embeddings", kMostIds, qwen2 ? 32768 : 2048);
  c.heads = f.count("num_attention_heads", kWidest);
  c.kv_heads = f.count("num_key_value_heads", kWidest, c.heads);
  if (!f.has("head_dim") && c.heads > 0 && c.width % c.heads != 0)
    f.refuse("hidden_size", fmt::format("{} does not divide by {} heads", c.width, c.heads));
  c.head_dim = f.count("head_dim", kWidest, c.heads > 0 ? c.width / c.heads : 0);
  c.norm_eps = float(f.number("rms_norm_eps", 1e-6));
  c.tied = f.flag("tie_word_embeddings", false);
  c.init_scale = float(f.number("initializer_range", 0.02));
  const bool biased = f.flag("attention_bias", false);
  c.qkv_bias = qwen2 || biased, c.output_bias = !qwen2 && biased;
  read_rope(f, c);
  f.only("hidden_act", "silu", "silu");
  f.only("attention_dropout", 0.0, 0.0);
  f.only("mlp_bias", false, false);
  f.only("pretraining_tp", 1, 1);
  f.absent("quantization_config", "a quantized model");
  if (qwen2)
    refuse_windows(f, object);
  else
    f.absent("sliding_window", "a sliding window");
  return c;
}

// A float as the shortest decimal that reads back as it: 1e-05, not 9.99999974e-06.
double decimal(float x) { return std::stod(fmt::format("{}", x)); }

json json_of(const GptConfig& c) {
  constexpr const char* names[] = {"gelu_new", "gelu", "relu"};
  return {{"model_type", "gpt2"},
          {"vocab_size", c.vocab},
          {"n_positions", c.positions},
          {"n_embd", c.width},
          {"n_layer", c.layers},
          {"n_head", c.heads},
          {"layer_norm_epsilon", decimal(c.norm_eps)},
          {"activation_function", names[size_t(c.activation)]},
          {"resid_pdrop", decimal(c.dropout)},
          {"embd_pdrop", decimal(c.dropout)},
          {"attn_pdrop", 0.0}};
}

json json_of(const RopeScaling& r) {
  if (r.kind == RopeScaling::Kind::none) return nullptr;
  if (r.kind == RopeScaling::Kind::linear) return {{"rope_type", "linear"}, {"factor", r.factor}};
  return {{"rope_type", "llama3"},
          {"factor", r.factor},
          {"low_freq_factor", r.low_freq_factor},
          {"high_freq_factor", r.high_freq_factor},
          {"original_max_position_embeddings", r.original_positions}};
}

json json_of(const LlamaConfig& c) {
  CHECK(c.qkv_bias || !c.output_bias, "a config.json cannot say that only the output projection has a bias");
  const bool qwen2 = c.qkv_bias && !c.output_bias;
  json j{{"model_type", qwen2 ? "qwen2" : "llama"},
         {"vocab_size", c.vocab},
         {"hidden_size", c.width},
         {"intermediate_size", c.mlp_width},
         {"num_hidden_layers", c.layers},
         {"num_attention_heads", c.heads},
         {"num_key_value_heads", c.kv_heads},
         {"head_dim", c.head_dim},
         {"max_position_embeddings", c.positions},
         {"rms_norm_eps", decimal(c.norm_eps)},
         {"rope_theta", c.rope_theta},
         {"rope_scaling", json_of(c.rope)},
         {"tie_word_embeddings", c.tied},
         {"hidden_act", "silu"},
         {"initializer_range", decimal(c.init_scale)}};
  if (!qwen2) j["attention_bias"] = c.qkv_bias;
  return j;
}

}  // namespace

ModelConfig read_config_json(const std::string& text, const std::string& origin) {
  const json object = json::parse(text, nullptr, false);
  require(object.is_object(), Exit::usage, "{} is not a JSON object; wanted the config.json of a model",
          origin);
  std::vector<std::string> problems;
  const Fields f(object, "", problems);
  ModelConfig config;
  const std::string type = f.word("model_type", "");
  if (type == "gpt2")
    config = read_gpt2(f);
  else if (type == "llama" || type == "qwen2")
    config = read_llama(f, object, type == "qwen2");
  else
    f.refuse("model_type", fmt::format("'{}' is not built; gpt2, llama and qwen2 are", type));
  std::string all;
  for (const std::string& p : problems) all += "\n  " + p;
  require(problems.empty(), Exit::usage, "{} describes a model that cannot be made:{}", origin, all);
  const double parameters = std::visit([](const auto& c) { return parameters_of(c); }, config);
  require(parameters <= kMostParameters, Exit::usage,
          "{} describes a model of about {:.2g} parameters; at most {:.0g} can be planned", origin,
          parameters, kMostParameters);
  return config;
}

std::string to_config_json(const ModelConfig& config) {
  return std::visit([](const auto& c) { return json_of(c); }, config).dump(2) + "\n";
}

}  // namespace cleave

#include "tests/cuda_interpreter/ptx.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/cuda_interpreter/device_memory.h"
#include "tests/cuda_interpreter/warp.h"

namespace interpreter {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.';
}
bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)); }

std::string trimmed(std::string_view s) {
  while (!s.empty() && is_space(s.front())) s.remove_prefix(1);
  while (!s.empty() && is_space(s.back())) s.remove_suffix(1);
  return std::string(s);
}

std::vector<std::string_view> split(std::string_view s, char by) {
  std::vector<std::string_view> parts;
  for (size_t at = 0;;) {
    const size_t end = s.find(by, at);
    parts.push_back(s.substr(at, end - at));
    if (end == s.npos) return parts;
    at = end + 1;
  }
}

// Splits at commas outside of braces and brackets.
std::vector<std::string> operands_of(std::string_view s) {
  std::vector<std::string> all;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= s.size(); ++i) {
    if (i == s.size() || (s[i] == ',' && depth == 0)) {
      if (std::string one = trimmed(s.substr(begin, i - begin)); !one.empty()) all.push_back(std::move(one));
      begin = i + 1;
    } else if (s[i] == '{' || s[i] == '[') {
      ++depth;
    } else if (s[i] == '}' || s[i] == ']') {
      --depth;
    }
  }
  return all;
}

// Takes the first word; leaves the rest.
std::string take_word(std::string_view& s) {
  while (!s.empty() && is_space(s.front())) s.remove_prefix(1);
  size_t n = 0;
  while (n < s.size() && (is_word(s[n]) || s[n] == ':')) ++n;
  const std::string word(s.substr(0, n));
  s.remove_prefix(n);
  return word;
}

uint64_t round_up(uint64_t x, uint64_t to) { return (x + to - 1) / to * to; }

}  // namespace

int bytes_of(std::string_view type) {
  if (type == "pred") return 0;
  if (type.ends_with("x2")) return 4;
  const size_t digits = type.find_first_of("0123456789");
  return digits == type.npos ? -1 : std::atoi(std::string(type.substr(digits)).c_str()) / 8;
}

bool Statement::has(std::string_view part) const {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

std::string Kernel::where(int pc) const {
  return source[size_t(pc)] + "line " + std::to_string(code[size_t(pc)].line) +
         " of the PTX: " + text[size_t(pc)];
}

// Finds the declarations of a module outside of its kernels: names, files, variables.
Module::Module(std::string text) : text_(std::move(text)) {
  const std::string_view all = text_;
  for (size_t at = all.find(".entry "); at != all.npos; at = all.find(".entry ", at + 1)) {
    std::string_view rest = all.substr(at + 7);
    entries_[take_word(rest)] = at + 7;
  }
  for (size_t at = 0, depth = 0; at < all.size(); ++at) {
    if (all[at] == '/' && all.substr(at, 2) == "//") at = std::min(all.find('\n', at), all.size() - 1);
    if (all[at] == '{') ++depth;
    if (all[at] == '}') --depth;
    if (depth > 0 || all[at] != '.') continue;
    std::string_view rest = all.substr(at);
    if (rest.starts_with(".file")) {
      rest.remove_prefix(5);
      const std::string number = take_word(rest);
      const size_t open = rest.find('"') + 1;
      files_[std::atoi(number.c_str())] = std::string(rest.substr(open, rest.find('"', open) - open));
    }
    const bool dynamic = rest.starts_with(".shared");
    if (!dynamic && !rest.starts_with(".global") && !rest.starts_with(".const")) continue;
    const std::string_view line = rest.substr(0, rest.find(';'));
    const size_t open = line.find('[');
    size_t begin = open == line.npos ? line.find_last_of(" \t") + 1 : open;
    while (begin > 0 && open != line.npos && is_word(line[begin - 1])) --begin;
    std::string_view name = line.substr(begin);
    const std::string key = take_word(name);
    if (dynamic) {
      variables_[key] = {0, true};
    } else {
      const size_t count = open == line.npos ? 8 : size_t(std::atoll(line.data() + open + 1));
      size_t type = line.find(".b8") == line.npos ? 8 : 1;
      memory_.push_back(std::make_unique<std::byte[]>(count * type));
      std::byte* data = memory_.back().get();
      if (const size_t values = line.find('{'); values != line.npos) {
        if (type != 1) throw Defect("the interpreter knows initial values of bytes only: " + key);
        size_t i = 0;
        for (const auto& one : operands_of(line.substr(values + 1, line.rfind('}') - values - 1)))
          data[i++] = std::byte(std::stoi(one));
      }
      variables_[key] = {reinterpret_cast<uint64_t>(data), false};
      device_memory().add(data, count * type, "a variable of a module");
    }
    at += line.size();
  }
}

const Kernel& Module::kernel(const std::string& name) {
  std::unique_ptr<Kernel>& kernel = kernels_[name];
  if (!kernel) {
    auto fresh = std::make_unique<Kernel>();
    fresh->name = name;
    Decoder(*this, *fresh).run(entries_.at(name));
    kernel = std::move(fresh);
  }
  return *kernel;
}

uint32_t Decoder::place(int width) {
  const uint32_t bytes = width == 0 ? 64 : uint32_t(width == 1 ? 2 : width) * 32;
  kernel_.file_bytes += bytes;
  return kernel_.file_bytes - bytes;
}

void Decoder::declare(std::string_view type, std::string name) {
  int width = bytes_of(type);
  if (width == 1) width = 2;
  if (const size_t open = name.find('<'); open != name.npos) {
    const int count = std::atoi(name.c_str() + open + 1);
    name.resize(open);
    for (int i = 0; i < count; ++i) scopes_.back()[name + std::to_string(i)] = {place(width), width};
  } else {
    scopes_.back()[name] = {place(width), width};
  }
}

Decoder::Register* Decoder::find(const std::string& name) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
    if (const auto at = scope->find(name); at != scope->end()) return &at->second;
  static const char* const kSpecial[] = {"%tid.",   "%ctaid.",    "%ntid.", "%nctaid.",
                                         "%laneid", "%lanemask_", "%warpid"};
  for (const char* special : kSpecial)
    if (name.starts_with(special)) {
      Register& r = scopes_.front()[name] = {place(4), 4};
      kernel_.special[name] = r.at;
      return &r;
    }
  return nullptr;
}

uint32_t Decoder::constant(uint64_t bits, int width) {
  const auto [at, added] = numbers_.try_emplace({bits, width}, 0);
  if (added) {
    at->second = place(width);
    kernel_.constants.push_back({at->second, uint32_t(width), bits});
  }
  return at->second;
}

uint32_t Decoder::parameter(uint32_t offset) {
  const auto [at, added] = kernel_.param_places.try_emplace(offset, 0);
  if (added) at->second = place(8);
  return at->second;
}

int64_t Decoder::number(const std::string& s) {
  const bool minus = s.starts_with("-");
  const char* digits = s.c_str() + minus;
  if (!std::isdigit(static_cast<unsigned char>(*digits))) throw Defect("not a number: " + s);
  const uint64_t value = std::strtoull(digits, nullptr, 0);
  return int64_t(minus ? 0 - value : value);
}

bool Decoder::is_register(const std::string& operand) { return find(operand) != nullptr; }

int Decoder::width(const std::string& operand) {
  const Register* r = find(operand);
  return r ? r->width : -1;
}

uint32_t Decoder::write(const std::string& operand) {
  if (operand == "_") return place(8);
  const Register* r = find(operand);
  if (!r) throw Defect("not a register: " + operand);
  return r->at;
}

uint32_t Decoder::read(const std::string& operand, std::string_view type) {
  if (const Register* r = find(operand)) return r->at;
  const int width = std::max(bytes_of(type), 2);
  if (bytes_of(type) == 0) return constant(number(operand) ? ~0u : 0u, 4);
  if (operand.starts_with("0f") || operand.starts_with("0F"))
    return constant(std::strtoull(operand.c_str() + 2, nullptr, 16), 4);
  if (operand.starts_with("0d") || operand.starts_with("0D"))
    return constant(std::strtoull(operand.c_str() + 2, nullptr, 16), 8);
  if (const auto at = params_.find(operand); at != params_.end()) {
    return parameter(at->second);
  }
  if (const auto at = shared_.find(operand); at != shared_.end())
    return constant(SharedMemory::kBegin + at->second, width);
  if (local_.count(operand)) {
    if (!kernel_.local_at) kernel_.local_at = place(8);
    return kernel_.local_at;
  }
  if (const auto at = module_.variables_.find(operand); at != module_.variables_.end())
    return constant(
        at->second.shared ? SharedMemory::kBegin + round_up(kernel_.shared_bytes, 1024) : at->second.address,
        width);
  uint64_t bits = uint64_t(number(operand));
  if (type == "f32") bits = std::bit_cast<uint32_t>(float(int64_t(bits)));
  if (type == "f64") bits = std::bit_cast<uint64_t>(double(int64_t(bits)));
  return constant(width == 8 ? bits : bits & ((uint64_t{1} << width * 8) - 1), width);
}

std::vector<std::string> Decoder::elements(const std::string& operand) const {
  if (!operand.starts_with("{")) return {operand};
  return operands_of(std::string_view(operand).substr(1, operand.size() - 2));
}

Decoder::Address Decoder::address(const std::string& operand) {
  std::string inner = trimmed(std::string_view(operand).substr(1, operand.size() - 2));
  int64_t offset = 0;
  if (const size_t plus = inner.find('+'); plus != inner.npos) {
    offset = number(trimmed(std::string_view(inner).substr(plus + 1)));
    inner = trimmed(std::string_view(inner).substr(0, plus));
  }
  if (const auto at = params_.find(inner); at != params_.end()) {
    return {parameter(0), true, offset + at->second};
  }
  if (const Register* r = find(inner)) return {r->at, r->width == 8, offset};
  if (shared_.count(inner)) return {read(inner, "u32"), false, offset};
  const auto at = module_.variables_.find(inner);
  const bool wide = at == module_.variables_.end() || !at->second.shared;
  return {read(inner, wide ? "u64" : "u32"), wide, offset};
}

uint32_t Decoder::predicate(const std::string& operand, bool& negated) {
  negated = operand.starts_with("!");
  return read(operand.substr(negated), "pred");
}

void Decoder::unknown(const Statement& s, const char* what) const {
  std::string text = s.op;
  for (const std::string& o : s.operands) text += " " + o;
  throw Defect("the interpreter does not know " + std::string(what) + ": " + text + "; in " + kernel_.name);
}

// Parses "name( .param ... name, ... )" and the block attributes, up to the body.
void Decoder::parameters(size_t& at) {
  const std::string_view text = module_.text_;
  const size_t open = text.find('(', at), body = text.find('{', at);
  at = body;
  if (open > body) return;
  const size_t close = text.find(')', open);
  for (const std::string& one : operands_of(text.substr(open + 1, close - open - 1))) {
    const auto words = split(one, ' ');
    uint32_t bytes = 0, align = 0, count = 1;
    std::string name(trimmed(one.substr(one.find_last_of(" \t") + 1)));
    if (const size_t array = name.find('['); array != name.npos)
      count = uint32_t(std::atoi(name.c_str() + array + 1)), name.resize(array);
    for (const std::string_view word : split(one, '.'))
      if (word.starts_with("align "))
        align = uint32_t(std::atoi(word.data() + 6));
      else if (const int width = bytes_of(word.substr(0, word.find_first_of(" \t")));
               width > 0 && bytes == 0 && !word.starts_with("param"))
        bytes = uint32_t(width);
    kernel_.param_bytes = uint32_t(round_up(kernel_.param_bytes, align ? align : bytes));
    params_[name] = kernel_.param_bytes;
    kernel_.params.push_back({kernel_.param_bytes, bytes * count});
    kernel_.param_bytes += bytes * count;
  }
  const std::string_view rest = text.substr(close, body - close);
  if (const size_t most = rest.find(".maxntid"); most != rest.npos) {
    kernel_.max_threads = 1;
    for (const auto& n : operands_of(rest.substr(most + 8, rest.find('\n', most) - most - 8)))
      kernel_.max_threads *= std::atoi(n.c_str());
  }
}

// Parses "file line column, function_name ..., inlined_at file line column"; the latter is
// optional.
std::string Decoder::location(std::string_view text) const {
  std::string all;
  for (;;) {
    const int file = std::atoi(take_word(text).c_str());
    const std::string line = take_word(text);
    if (const auto at = module_.files_.find(file); at != module_.files_.end())
      all += at->second + ":" + line + ", ";
    const size_t outer = text.find("inlined_at");
    if (outer == text.npos) return all;
    text.remove_prefix(outer + 10);
  }
}

void Decoder::directive(const std::string& text) {
  std::string_view rest = text;
  const std::string what = take_word(rest);
  if (what == ".pragma") return;
  if (what == ".reg") {
    const std::string type = take_word(rest).substr(1);
    for (const std::string& name : operands_of(rest)) declare(type, name);
    return;
  }
  if (what != ".shared" && what != ".local") throw Defect("the interpreter does not know " + text);
  uint32_t align = 1;
  std::string word = take_word(rest);
  if (word == ".align") align = uint32_t(std::atoi(take_word(rest).c_str())), word = take_word(rest);
  const std::string name = take_word(rest);
  const uint32_t count = rest.starts_with("[") ? uint32_t(std::atoi(rest.data() + 1)) : 1;
  uint32_t& used = what == ".shared" ? kernel_.shared_bytes : kernel_.local_bytes;
  used = uint32_t(round_up(used, align));
  (what == ".shared" ? shared_ : local_)[name] = used;
  if (what == ".local" && used) throw Defect("two arrays of local memory in " + kernel_.name);
  used += count * uint32_t(bytes_of(word.substr(1)));
}

void Decoder::statement(const std::string& text, int line) {
  if (text.starts_with(".")) return directive(text);
  Statement s;
  std::string_view rest = text;
  if (rest.starts_with("@")) {
    rest.remove_prefix(1);
    if (rest.starts_with("!")) s.unless = true, rest.remove_prefix(1);
    s.guard = take_word(rest);
  }
  s.op = take_word(rest);
  s.parts = split(s.op, '.');
  s.operands = operands_of(rest);
  Instr in;
  in.line = line;
  if (!s.guard.empty()) in.guard = read(s.guard, "pred"), in.unless = s.unless;
  if (s.parts[0] == "bra") jumps_.emplace_back(kernel_.code.size(), s.operands[0]);
  if (!decode_arithmetic(*this, s, in) && !decode_conversion(*this, s, in) && !decode_memory(*this, s, in) &&
      !decode_warp(*this, s, in) && !decode_matrix(*this, s, in))
    unknown(s, "an instruction");
  kernel_.code.push_back(std::move(in));
  kernel_.text.push_back(text);
  kernel_.source.push_back(source_);
}

// Decodes the body statement by statement.
void Decoder::run(size_t at) {
  const std::string& text = module_.text_;
  int line = 1 + int(std::count(text.begin(), text.begin() + int64_t(at), '\n'));
  const size_t before = at;
  parameters(at);
  line += int(std::count(text.begin() + int64_t(before), text.begin() + int64_t(at), '\n'));
  place(8);  // no register begins at zero
  std::string current;
  for (int braces = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '/' && text[at + 1] == '/') {
      at = text.find('\n', at);
      ++line;
      continue;
    }
    if (c == '\n') ++line;
    if (current.empty() && is_space(c)) continue;
    if (current.empty() && c == '.' && text.compare(at, 4, ".loc") == 0 && is_space(text[at + 4])) {
      const size_t end = text.find('\n', at);
      source_ = location(std::string_view(text).substr(at + 4, end - at - 4));
      at = end, ++line;
      continue;
    }
    if (current.empty() && c == '{') {
      scopes_.emplace_back();
      continue;
    }
    if (current.empty() && c == '}') {
      scopes_.pop_back();
      if (scopes_.empty()) break;
      continue;
    }
    if (c == '{') ++braces;
    if (c == '}') --braces;
    if (c == ':' && braces == 0 && current.find_first_of(" \t") == current.npos && text[at + 1] != ':' &&
        !current.empty() && current.back() != ':' && current.find('.') == current.npos) {
      labels_[current] = uint32_t(kernel_.code.size());
      current.clear();
    } else if (c == ';') {
      statement(trimmed(current), line);
      current.clear();
    } else {
      current += is_space(c) ? ' ' : c;
    }
  }
  for (const auto& [from, label] : jumps_) {
    if (!labels_.count(label)) throw Defect("no label " + label + " in " + kernel_.name);
    kernel_.code[from].number = labels_[label];
  }
}

}  // namespace interpreter

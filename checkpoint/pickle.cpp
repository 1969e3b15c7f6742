#include "checkpoint/pickle.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <optional>

#include "core/error.h"
#include "core/printable.h"

namespace cleave::checkpoint {
namespace {

using Kind = Pickled::Kind;

// Names in pickles of tensors, and the results of calling them.
enum class Makes : uint8_t { none, dict, list, same, tensor, tensor_v1, parameter, typed, inert };
constexpr std::pair<std::string_view, Makes> kCalls[] = {
    {"collections.OrderedDict", Makes::dict},
    {"collections.defaultdict", Makes::dict},
    {"builtins.set", Makes::list},
    {"builtins.frozenset", Makes::list},
    {"builtins.list", Makes::list},
    {"builtins.dict", Makes::dict},
    {"__builtin__.set", Makes::list},
    {"__builtin__.frozenset", Makes::list},
    {"__builtin__.list", Makes::list},
    {"__builtin__.dict", Makes::dict},
    {"torch.Size", Makes::same},
    {"torch._utils._rebuild_tensor_v2", Makes::tensor},
    {"torch._utils._rebuild_tensor", Makes::tensor_v1},
    {"torch._utils._rebuild_parameter", Makes::parameter},
    {"torch._tensor._rebuild_from_type_v2", Makes::typed},
    {"torch.device", Makes::inert}};

Makes call_of(const std::string& name) {
  for (const auto& [known, call] : kCalls)
    if (name == known) return call;
  return Makes::none;
}

// Types and storages of torch are accepted as names, never called.
bool is_torch_type(const std::string& name) {
  constexpr std::string_view types[] = {"float32", "float64", "float16", "bfloat16", "float",
                                        "double",  "half",    "int64",   "int32",    "int16",
                                        "int8",    "uint8",   "bool"};
  if (!name.starts_with("torch.")) return false;
  const std::string_view last = std::string_view(name).substr(name.rfind('.') + 1);
  return last.ends_with("Storage") || std::find(std::begin(types), std::end(types), last) != std::end(types);
}

bool is_list_of_integers(const Pickled& v) {
  return v.kind == Kind::list && std::all_of(v.items.begin(), v.items.end(), [](auto* i) {
           return i->kind == Kind::integer && i->text.empty();
         });
}

}  // namespace

const Pickled* Pickled::find(std::string_view name) const {
  if (kind == Kind::object) return items.empty() ? nullptr : items[0]->find(name);
  if (kind != Kind::dict) return nullptr;
  for (size_t i = items.size(); i >= 2; i -= 2)
    if (items[i - 2]->kind == Kind::text && items[i - 2]->text == name) return items[i - 1];
  return nullptr;
}

Pickle::~Pickle() = default;

// Stack machine of pickle: a stack of values, the positions of marks in it, and a memo of values that occur
// twice.
class Pickle::Machine {
 public:
  Machine(std::deque<Pickled>& values, std::span<const std::byte> bytes, const Inert& inert)
      : values_(values), bytes_(bytes), inert_(inert), room_(kRoom + kRoomPerByte * bytes.size()) {}

  const Pickled* run() {
    for (;;) {
      place_ = at_;
      const auto op = uint8_t(take(1)[0]);
      if (op == '.') return pop();
      if (!(scalar(op) || text(op) || container(op) || memory(op) || call(op)))
        refuse(fmt::format("the instruction {:#04x} is not supported (expected one of protocol 2 to 5)", op));
    }
  }
  size_t at() const { return at_; }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    fail(Exit::checkpoint, "at byte {} of the pickle: {}", place_, why);
  }
  std::string_view take(uint64_t n) {
    if (n > bytes_.size() - at_) refuse("the data end too early");
    const auto* begin = reinterpret_cast<const char*>(bytes_.data()) + at_;
    at_ += size_t(n);
    return {begin, size_t(n)};
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view line() {
    const auto* begin = reinterpret_cast<const char*>(bytes_.data()) + at_;
    const void* end = std::memchr(begin, '\n', bytes_.size() - at_);
    if (!end) refuse("the data end too early");
    const std::string_view text = take(uint64_t(static_cast<const char*>(end) - begin) + 1);
    return text.substr(0, text.size() - 1);
  }

  // Memory limit of values, so that a small file cannot request much. Files of torch take 10 times their
  // size.
  static constexpr size_t kRoom = size_t{1} << 16, kRoomPerByte = 32;
  void take_room(size_t bytes) {
    if (bytes > room_)
      refuse(
          fmt::format("its values need more memory than {} times its {} bytes", kRoomPerByte, bytes_.size()));
    room_ -= bytes;
  }
  Pickled* make(Pickled value) {
    take_room(sizeof value + value.text.size() + value.items.size() * sizeof(void*));
    return &values_.emplace_back(std::move(value));
  }
  bool push(const Pickled* value) {
    stack_.push_back(const_cast<Pickled*>(value));  // all are in values_
    return true;
  }
  bool push_new(Pickled value) { return push(make(std::move(value))); }
  // Pops a value above the last mark.
  Pickled* pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) refuse("it takes a value from an empty stack");
    Pickled* value = stack_.back();
    stack_.pop_back();
    return value;
  }
  Pickled* top(Kind kind, Kind other) {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) refuse("it takes a value from an empty stack");
    if (stack_.back()->kind != kind && stack_.back()->kind != other)
      refuse("it adds to a value that is not a container");
    return stack_.back();
  }
  std::vector<const Pickled*> pop_to_mark() {
    if (marks_.empty()) refuse("a mark is missing");
    std::vector<const Pickled*> values(stack_.begin() + int64_t(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return values;
  }
  std::vector<const Pickled*> pop_some(size_t n) {
    std::vector<const Pickled*> values(n);
    for (size_t i = n; i-- > 0;) values[i] = pop();
    return values;
  }

  bool integer(int64_t value) { return push_new({.kind = Kind::integer, .integer = value}); }
  // Immutable values are created once.
  bool small(Kind kind, uint8_t value) {
    Pickled*& one = small_[{kind, value}];
    if (!one) one = make({.kind = kind, .integer = value});
    return push(one);
  }
  bool long_of(uint64_t n) {
    const std::string_view bytes = take(n);
    if (n > sizeof(int64_t)) return push_new({.kind = Kind::integer, .text = std::string(bytes)});
    int64_t value = n > 0 && (uint8_t(bytes.back()) & 0x80) ? -1 : 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    return integer(value);
  }
  bool scalar(uint8_t op) {
    switch (op) {
      case 0x80:  // PROTO
        if (const auto version = number<uint8_t>(); version < 2 || version > 5)
          refuse(fmt::format("unsupported protocol (got {}, expected 2 to 5)", version));
        return true;
      case 0x95:
        return take(8), true;  // FRAME
      case 'N':
        return small(Kind::none, 0);
      case 0x88:
      case 0x89:
        return small(Kind::boolean, op == 0x88);
      case 'J':
        return integer(number<int32_t>());
      case 'K':
        return small(Kind::integer, number<uint8_t>());
      case 'M':
        return integer(number<uint16_t>());
      case 0x8a:
        return long_of(number<uint8_t>());
      case 0x8b:
        return long_of(number<uint32_t>());
      case 'G':
        return push_new(
            {.kind = Kind::number, .number = std::bit_cast<double>(__builtin_bswap64(number<uint64_t>()))});
      default:
        return false;
    }
  }

  bool text_of(Kind kind, uint64_t n) { return push_new({.kind = kind, .text = std::string(take(n))}); }
  bool text(uint8_t op) {
    switch (op) {
      case 'X':
        return text_of(Kind::text, number<uint32_t>());
      case 0x8c:
        return text_of(Kind::text, number<uint8_t>());
      case 0x8d:
        return text_of(Kind::text, number<uint64_t>());
      case 'U':
        return text_of(Kind::text, number<uint8_t>());
      case 'T':
        return text_of(Kind::text, number<uint32_t>());
      case 'C':
        return text_of(Kind::bytes, number<uint8_t>());
      case 'B':
        return text_of(Kind::bytes, number<uint32_t>());
      case 0x8e:
      case 0x96:
        return text_of(Kind::bytes, number<uint64_t>());
      default:
        return false;
    }
  }

  bool add(Pickled* container, std::vector<const Pickled*> more) {
    if (container->kind == Kind::dict && more.size() % 2 != 0) refuse("a key has no value");
    if (container->kind == Kind::object) return true;  // only its attributes are kept
    take_room(more.size() * sizeof(void*));
    container->items.insert(container->items.end(), more.begin(), more.end());
    return true;
  }
  bool add_to_mark(Kind kind) {
    std::vector<const Pickled*> more = pop_to_mark();
    return add(top(kind, Kind::object), std::move(more));
  }
  bool list_of(std::vector<const Pickled*> items, Kind kind = Kind::list) {
    if (kind == Kind::dict && items.size() % 2 != 0) refuse("a key has no value");
    return push_new({.kind = kind, .items = std::move(items)});
  }
  bool container(uint8_t op) {
    switch (op) {
      case '(':
        return marks_.push_back(stack_.size()), true;
      case ']':
      case ')':
      case 0x8f:
        return list_of({});
      case '}':
        return list_of({}, Kind::dict);
      case 't':
      case 'l':
      case 0x91:
        return list_of(pop_to_mark());
      case 'd':
        return list_of(pop_to_mark(), Kind::dict);
      case 0x85:
      case 0x86:
      case 0x87:
        return list_of(pop_some(size_t(op) - 0x84));
      case 'e':
      case 0x90:
        return add_to_mark(Kind::list);
      case 'u':
        return add_to_mark(Kind::dict);
      case 'a': {
        std::vector<const Pickled*> one = pop_some(1);
        return add(top(Kind::list, Kind::object), std::move(one));
      }
      case 's': {
        std::vector<const Pickled*> two = pop_some(2);
        return add(top(Kind::dict, Kind::object), std::move(two));
      }
      default:
        return false;
    }
  }

  bool put(uint64_t place) {
    if (stack_.empty()) refuse("it stores a value from an empty stack");
    if (place >= bytes_.size()) refuse("it stores a value at an impossible index");
    if (memory_.size() <= place) memory_.resize(place + 1);
    remembered_ += memory_[place] == nullptr;
    memory_[place] = stack_.back();
    return true;
  }
  bool get(uint64_t place) {
    if (place >= memory_.size() || !memory_[place]) refuse("it loads a value that it has not stored");
    return push(memory_[place]);
  }
  bool memory(uint8_t op) {
    switch (op) {
      case 'q':
        return put(number<uint8_t>());
      case 'r':
        return put(number<uint32_t>());
      case 0x94:
        return put(remembered_);
      case 'h':
        return get(number<uint8_t>());
      case 'j':
        return get(number<uint32_t>());
      case '0':
        return pop(), true;
      case '1':
        return pop_to_mark(), true;
      case '2': {
        Pickled* value = pop();
        return push(value), push(value);
      }
      default:
        return false;
    }
  }

  bool global(std::string_view module, std::string_view name) {
    constexpr size_t kLongest = 500;  // limits the text that repeated names can request
    if (module.size() + name.size() > kLongest) refuse("a name is too long");
    std::string all = std::string(module) + "." + std::string(name);
    if (call_of(all) == Makes::none && !is_torch_type(all) && !(inert_ && inert_(all)))
      refuse(
          fmt::format("it uses {}, which is neither a tensor nor a container; this is not supported, because "
                      "a pickle can run any code. Save the model as safetensors",
                      in_quotes(all, 100)));
    return push_new({.kind = Kind::global, .text = std::move(all)});
  }
  bool call(uint8_t op) {
    switch (op) {
      case 'c': {
        const std::string_view module = line(), name = line();
        return global(module, name);
      }
      case 0x93: {
        const Pickled *name = pop(), *module = pop();
        if (name->kind != Kind::text || module->kind != Kind::text) refuse("a name is not a string");
        return global(module->text, name->text);
      }
      case 'Q':
        return storage(*pop());
      case 'R': {
        const Pickled* arguments = pop();
        return reduce(*pop(), *arguments);
      }
      case 0x81: {
        const Pickled* arguments = pop();
        return reduce(*pop(), *arguments);
      }
      case 0x92: {
        const Pickled *named = pop(), *arguments = pop();
        if (named->kind != Kind::dict || !named->items.empty())
          refuse("it passes arguments by name to a class");
        return reduce(*pop(), *arguments);
      }
      case 'b':
        return top_is_built(pop());
      default:
        return false;
    }
  }
  // Drops attributes of containers and tensors. An object's attributes stay one dict, so that no pickle can
  // multiply them.
  bool top_is_built(const Pickled* attributes) {
    Pickled* built = top_any();
    const Kind kind = built->kind;
    if (kind != Kind::dict && kind != Kind::object && kind != Kind::tensor && kind != Kind::list)
      refuse("it sets attributes of a value that has none");
    if (kind == Kind::object && attributes->kind == Kind::dict) built->items = {attributes};
    return true;
  }
  Pickled* top_any() {
    Pickled* value = pop();
    stack_.push_back(value);
    return value;
  }

  // ("storage", torch.FloatStorage, key, location, elements)
  bool storage(const Pickled& id) {
    const auto& i = id.items;
    const bool right = id.kind == Kind::list && i.size() >= 5 && i[0]->kind == Kind::text &&
                       i[0]->text == "storage" && i[1]->kind == Kind::global && i[2]->kind == Kind::text &&
                       i[2]->text.size() <= 100 && i[4]->kind == Kind::integer && i[4]->text.empty() &&
                       i[4]->integer >= 0;
    if (!right) refuse("it refers to an object outside the pickle that is not a tensor storage");
    return push_new({.kind = Kind::storage, .integer = i[4]->integer, .text = i[2]->text, .items = {i[1]}});
  }

  bool reduce(const Pickled& callee, const Pickled& arguments) {
    if (callee.kind != Kind::global || arguments.kind != Kind::list)
      refuse("it calls a value that is not a class");
    const auto& a = arguments.items;
    switch (call_of(callee.text)) {
      case Makes::dict:
        if (!a.empty() && callee.text != "collections.defaultdict")
          refuse(callee.text + " has unexpected arguments");
        return list_of({}, Kind::dict);
      case Makes::list:
      case Makes::same:
        if (a.size() > 1 || (a.size() == 1 && a[0]->kind != Kind::list))
          refuse(callee.text + " has no list as its argument");
        return a.empty() ? list_of({}) : push(a[0]);
      case Makes::tensor:
      case Makes::tensor_v1:
        return tensor(a);
      case Makes::parameter:
        if (a.empty() || a[0]->kind != Kind::tensor) refuse("a parameter has no tensor");
        return push(a[0]);
      case Makes::typed:  // object with attributes: maker, class, and arguments of the maker
        if (a.size() < 3 || a[0]->text != "torch._utils._rebuild_tensor_v2" || a[2]->kind != Kind::list)
          refuse("a tensor of another class has an unexpected form");
        return tensor(a[2]->items);
      case Makes::inert:
        return push_new({.kind = Kind::object, .text = callee.text});
      case Makes::none:
        break;
    }
    if (!inert_ || !inert_(callee.text)) refuse(fmt::format("it calls {}", in_quotes(callee.text, 100)));
    return push_new({.kind = Kind::object, .text = callee.text});
  }

  bool tensor(const std::vector<const Pickled*>& a) {
    const bool right = a.size() >= 4 && a[0]->kind == Kind::storage && a[1]->kind == Kind::integer &&
                       a[1]->text.empty() && is_list_of_integers(*a[2]) && is_list_of_integers(*a[3]) &&
                       a[2]->items.size() == a[3]->items.size();
    if (!right) refuse("a tensor has an unexpected form");
    return push_new({.kind = Kind::tensor, .integer = a[1]->integer, .items = {a[0], a[2], a[3]}});
  }

  std::deque<Pickled>& values_;
  std::span<const std::byte> bytes_;
  const Inert& inert_;
  size_t at_ = 0, place_ = 0;
  std::vector<Pickled*> stack_;
  std::vector<size_t> marks_;
  std::vector<Pickled*> memory_;
  size_t remembered_ = 0, room_;
  std::map<std::pair<Kind, uint8_t>, Pickled*> small_;
};

Pickle::Pickle(std::span<const std::byte> bytes, const Inert& inert) {
  Machine machine(values_, bytes, inert);
  root_ = machine.run();
  size_ = machine.at();
}

}  // namespace cleave::checkpoint

// Python's pickles as plain values. A pickle is a program that may call anything; this reader calls nothing.
// It knows numbers, texts, containers and torch's tensors, and refuses everything else by name.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cleave::checkpoint {

struct Pickled {
  enum class Kind : uint8_t {
    none,
    boolean,  // integer
    integer,  // integer; one of more than 64 bits: text, its bytes
    number,   // number
    text,     // text
    bytes,    // text
    list,     // items; tuples, sets and sizes, too
    dict,     // items: keys and values in turn; the last value of a key is its value
    global,   // text: "module.name"
    object,   // text: its class, of which nothing is run; items: the dict of its attributes, where it has one
    storage,  // text: its key; items: the type, "torch.FloatStorage"; integer: elements
    tensor    // items: the storage, list of its shape, list of its strides; integer: offset in elements
  };
  Kind kind = Kind::none;
  int64_t integer = 0;
  double number = 0;
  std::string text = {};
  std::vector<const Pickled*> items = {};

  // The value that a dict has for a text, or an object as an attribute; null where there is none.
  const Pickled* find(std::string_view name) const;
};

class Pickle {
 public:
  // Reads one pickle of protocol 2 to 5 at the beginning of the bytes. `inert` says which classes beside the
  // known ones may stand in it, as objects with attributes. Error(checkpoint) says what was refused
  // and at which byte.
  using Inert = std::function<bool(const std::string& name)>;
  explicit Pickle(std::span<const std::byte> bytes, const Inert& inert = {});
  ~Pickle();
  Pickle(Pickle&&) noexcept = default;

  const Pickled& root() const { return *root_; }
  size_t size() const { return size_; }  // bytes of the pickle

 private:
  class Machine;
  std::deque<Pickled> values_;  // own all of them, because they may contain each other
  const Pickled* root_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cleave::checkpoint

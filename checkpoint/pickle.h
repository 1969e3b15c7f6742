// Reads Python pickles as plain values. A pickle is a program that may call any function; this reader calls
// none. It supports numbers, strings, containers and torch tensors, and rejects everything else by name.
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
    integer,  // integer; if wider than 64 bits, text with its bytes
    number,   // number
    text,     // text
    bytes,    // text
    list,     // items; also tuples, sets and sizes
    dict,     // items: keys and values in turn; the last value of a key counts
    global,   // text: "module.name"
    object,   // text: its class, never run; items: the dict of its attributes, if any
    storage,  // text: its key; items: the type, "torch.FloatStorage"; integer: elements
    tensor    // items: storage, list of the shape, list of strides; integer: offset in elements
  };
  Kind kind = Kind::none;
  int64_t integer = 0;
  double number = 0;
  std::string text = {};
  std::vector<const Pickled*> items = {};

  // Value of a text key of a dict, or of an object's attribute; null if not found.
  const Pickled* find(std::string_view name) const;
};

class Pickle {
 public:
  // Reads one pickle of protocol 2 to 5 at the start of the bytes. `inert` selects further classes to accept
  // as objects with attributes. Throws Error(checkpoint) with the rejected item and its byte.
  using Inert = std::function<bool(const std::string& name)>;
  explicit Pickle(std::span<const std::byte> bytes, const Inert& inert = {});
  ~Pickle();
  Pickle(Pickle&&) noexcept = default;

  const Pickled& root() const { return *root_; }
  size_t size() const { return size_; }  // bytes of the pickle

 private:
  class Machine;
  std::deque<Pickled> values_;  // own all values, because values may contain each other
  const Pickled* root_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cleave::checkpoint

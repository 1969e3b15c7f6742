// What predicting a text byte by byte is worth without a neural network: interpolated n-gram models with
// Witten-Bell weights (Witten and Bell, "The zero-frequency problem", 1991). A language model that beats
// order n uses more than the n - 1 bytes before.
//
// With h the n - 1 bytes before, N(h) how often h was followed by anything in the training text and T(h) by
// how many different bytes:  p_n(c | h) = (N(h c) + T(h) p_{n-1}(c | h without its first byte)) / (N(h) +
// T(h)), p_0 = 1/256, and p_n = p_{n-1} where h was never seen. So order 1 is the frequency of bytes, order 2
// looks one byte back, and every distribution sums to 1.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace cleave::data {

class NgramModel {
 public:
  static constexpr int kMaxOrder = 5;

  // Counts the grams of 1 to max_order bytes of `train`; at most kMaxOrder.
  NgramModel(std::span<const uint8_t> train, int max_order);

  int max_order() const { return int(grams_.size()) - 1; }

  // p_n(next | the last n - 1 bytes of `before`) for n = 1 to max_order(), into out[n - 1]. Orders that need
  // more bytes than `before` has repeat the longest one that it allows.
  void probabilities(std::span<const uint8_t> before, uint8_t next, std::span<double> out) const;

 private:
  // Open addressing; the key is the gram's bytes, its length is the table's.
  struct Entry {
    uint64_t key_plus_one = 0;  // 0 = free
    uint32_t count = 0;         // how often the gram occurs
    uint32_t followed = 0;      // how often with a byte after it
    uint32_t followers = 0;     // how many different ones
  };
  class Table {
   public:
    Table();
    Entry& at(uint64_t key);  // added when missing
    const Entry* find(uint64_t key) const;

   private:
    size_t slot_of(uint64_t key) const;
    void grow();

    std::vector<Entry> entries_;
    size_t used_ = 0;
  };

  std::vector<Table> grams_;  // by length, from 0 (the empty context) to max_order
};

// Mean loss in nats per byte of the models of order 1 to max_order, counted on `train` and scored on all of
// `validation`: element n - 1 is order n. Throws Error(data) when either is empty.
std::vector<double> ngram_losses(std::span<const uint8_t> train, std::span<const uint8_t> validation,
                                 int max_order = NgramModel::kMaxOrder);

// A text's bytes, as these models take them.
inline std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace cleave::data

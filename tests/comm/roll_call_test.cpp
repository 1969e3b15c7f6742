#include "comm/rendezvous/roll_call.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "tests/scratch.h"

namespace cleave::comm {
namespace {

// A store in memory, which counts questions.
class Memory {
 public:
  Store store() {
    return {[this](const std::string& key, const std::string& value) {
              const std::lock_guard lock(mutex_);
              values_[key] = value;
              changed_.notify_all();
            },
            [this](const std::string& key) {
              ++questions;
              std::unique_lock lock(mutex_);
              changed_.wait(lock, [&] { return values_.count(key) > 0; });
              return values_[key];
            }};
  }
  std::map<std::string, std::string>& values() { return values_; }
  std::atomic<int> questions{0};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

std::string text_of(int rank) {
  return fmt::format("host-{}|{}", rank / 8, std::string(size_t(rank % 13), 'x'));
}

TEST(RollCall, GivesAllTextsToAllRanks) {
  for (const int world : {1, 2, 9}) {
    Memory memory;
    std::vector<std::vector<std::string>> got(static_cast<size_t>(world));
    std::vector<std::thread> ranks;
    for (int r = 0; r < world; ++r)
      ranks.emplace_back([&, r] { got[size_t(r)] = roll_call(memory.store(), r, world, text_of(r)); });
    for (std::thread& t : ranks) t.join();
    for (const auto& texts : got) {
      ASSERT_EQ(texts.size(), size_t(world));
      for (int r = 0; r < world; ++r) EXPECT_EQ(texts[size_t(r)], text_of(r));
    }
    EXPECT_EQ(memory.questions, 2 * (world - 1));
  }
}

TEST(RollCall, OfManyRanksAsksOncePerBlock) {
  constexpr int kWorld = 2500;
  Memory memory;
  for (int r = 1; r < kWorld; ++r) memory.values()[fmt::format("process/{}", r)] = text_of(r);
  roll_call(memory.store(), 0, kWorld, text_of(0));
  memory.questions = 0;
  const std::vector<std::string> texts = roll_call(memory.store(), 2499, kWorld, text_of(2499));
  EXPECT_EQ(memory.questions, 3);
  ASSERT_EQ(texts.size(), size_t(kWorld));
  for (int r = 0; r < kWorld; ++r) EXPECT_EQ(texts[size_t(r)], text_of(r));
}

TEST(RollCall, RejectsABlockThatIsCut) {
  Memory memory;
  for (const std::string& block :
       {std::string(), std::string("\x09"), std::string("\x09\x00\x00\xff\xff\xff\xff", 7)}) {
    memory.values()["processes/0"] = block;
    expect_error(Exit::internal, {"the list of ranks 0 to 1 is incomplete"},
                       [&] { roll_call(memory.store(), 1, 2, "x"); });
  }
}

}  // namespace
}  // namespace cleave::comm

#include "comm/relay.h"

#include <exception>
#include <memory>

namespace cleave::comm {

void Relay::run(Stream& stream, std::function<void()> task) {
  auto failure = std::make_shared<std::exception_ptr>();
  worker_.wait(stream.record());
  worker_.enqueue([task = std::move(task), failure] {
    try {
      task();
    } catch (...) {
      *failure = std::current_exception();
    }
  });
  stream.wait(worker_.record());
  stream.enqueue([failure] {
    if (*failure) std::rethrow_exception(*failure);
  });
}

}  // namespace cleave::comm

#include "python/capi/caller_stream.h"

namespace cleave::capi {

void CallerStream::use(void* stream) {
  std::unique_ptr<Stream>& known = streams_[stream];
  if (!known) known = std::make_unique<Stream>(Stream::Foreign{device_, stream});
  now_ = stream;
}

void CallerStream::before(Stream& engine) {
  if (!is(engine)) engine.wait(streams_.at(now_)->record());
}

void CallerStream::after(Stream& engine) {
  if (!is(engine)) streams_.at(now_)->wait(engine.record());
}

}  // namespace cleave::capi

// Reports of an engine of the C interface about its steps: curves, and lines for the caller to print.
#pragma once
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "comm/communicator.h"
#include "config_schema/read_config.h"
#include "device/trace.h"
#include "monitor/event.h"
#include "monitor/event_queue.h"
#include "monitor/event_stream.h"
#include "monitor/line_sink.h"
#include "monitor/profile.h"
#include "runtime/engine_base.h"

namespace cleave::capi {

class Reports {
 public:
  // `ranks` must outlive this, and this must outlive the engine.
  Reports(const config::DsConfig& config, comm::Communicator& ranks);

  // Returns the communicator and the trace for the engine; the trace is null if no report needs it.
  comm::Communicator& world() { return traced_ ? *traced_ : ranks_; }
  Trace* trace() { return trace_.get(); }

  // Opens the files on the first rank, before the first step. Throws Error(usage) if this fails.
  void open_files(const config::ReadResult& read, const std::string& model,
                  const runtime::EngineBase& engine);
  bool has_monitors() const { return stream_.has_value(); }
  // Returns true if end_step() must be called on this rank.
  bool wants_steps() const;
  void scalar(const std::string& tag, double value, int64_t samples);

  // Begins to measure, before work of a step.
  void watch();
  void begin_step(int64_t steps, std::optional<monitor::ProfiledEngine> engine);
  // Reads the events of finished work.
  void read_events();
  void time(monitor::Timer timer, bool begins);
  // Reports a finished step. Collective if a profile is wanted. Returns the text to print.
  std::string end_step(const runtime::EngineBase& engine, const runtime::StepResult& result, int64_t samples);
  // Returns events for the caller (EventQueue::take).
  std::string take_events(bool wait);
  // Reports a complete checkpoint, on the first rank. Safe to call on any thread.
  void checkpointed(monitor::Checkpointed::Kind kind, const std::string& path, int64_t step,
                    std::chrono::steady_clock::time_point begin);
  // Ends the files (EventStream::close). engine: null after a failure. Has no effect in forked processes.
  void close(const runtime::EngineBase* engine);
  // Returns the rest of the text. Not collective.
  std::string end();

  monitor::Profile* profile() { return profile_ ? &*profile_ : nullptr; }

 private:
  void say(const std::string& text);
  bool wants(monitor::EventKinds kinds) const { return stream_ && stream_->wants(kinds); }
  void memory(const runtime::EngineBase& engine);

  const config::DsConfig config_;
  const pid_t owner_ = getpid();
  bool closed_ = false;
  comm::Communicator& ranks_;
  std::unique_ptr<Trace> trace_;
  std::unique_ptr<comm::Communicator> traced_;
  // Collects the lines for the caller, which prints them in order with its own.
  class Text final : public monitor::LineSink {
   public:
    using LineSink::LineSink;
    std::string name() const override { return "lines"; }
    std::string taken() { return std::exchange(text_, {}); }

   private:
    void print(const std::string& text) override { text_ += (text_.empty() ? "" : "\n") + text; }
    std::string text_;
  };
  Text text_;                                                   // of the first rank
  monitor::EventQueue queue_;                                   // with wandb.enabled
  std::optional<monitor::EventStream> stream_;                  // of the first rank, if it has monitors
  std::optional<monitor::Profile> profile_;                     // if a report is wanted
  std::optional<std::chrono::steady_clock::time_point> began_;  // the current step
};

}  // namespace cleave::capi

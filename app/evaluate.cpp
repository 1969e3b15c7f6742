#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>

#include "app/parse.h"
#include "app/pretrained.h"
#include "app/raw_bytes.h"
#include "data/batch_loader.h"
#include "monitor/progress.h"

namespace cleave {
namespace {

// How far an evaluation is, on stderr: one line that is drawn again on a terminal, elsewhere a line now and
// then.
class EvalProgress {
 public:
  EvalProgress(int64_t batches, bool shown) : batches_(batches), shown_(shown) {}
  ~EvalProgress() {
    if (drawn_) std::fputs("\r\x1b[K", stderr);
  }

  // Before batch `done` begins.
  void at(int64_t done) {
    const Clock::time_point now = Clock::now();
    if (!shown_ || now - said_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(5)))
      return;
    said_ = now;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    std::fprintf(stderr, "%sevaluated %lld of %lld batches, %s left%s", terminal_ ? "\r\x1b[K" : "",
                 static_cast<long long>(done), static_cast<long long>(batches_),
                 format_duration(done > 0 ? seconds / double(done) * double(batches_ - done) : -1).c_str(),
                 terminal_ ? "" : "\n");
    std::fflush(stderr);
    drawn_ = terminal_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  int64_t batches_;
  bool shown_, terminal_ = isatty(STDERR_FILENO) != 0, drawn_ = false;
  Clock::time_point begin_ = Clock::now(), said_ = begin_;
};

}  // namespace

int run_eval(const Arguments& arguments) {
  CLI::App app(
      "Mean loss of a checkpoint on data, in nats a token, on any number of ranks.\n"
      "Example: cleave eval runs/quickstart/checkpoints --data validation.txt",
      "eval");
  PretrainedOptions o;
  o.micro_batch = 8;
  std::string data;
  add_options(app, o);
  app.add_option("--data", data, "text or token file")->required();
  app.add_option("--micro_batch", o.micro_batch, "samples that a rank computes at a time")
      ->capture_default_str()
      ->check(integer(1));
  if (!parse(app, arguments)) return 0;
  Job job(o.ranks);
  return job.run([&] {
    TokenFile file(data);  // what is wrong with it is known before anything is started
    if (job.first()) warn_of_raw_bytes({data});
    Pretrained model(o, job);
    file = TokenFile(data, {.vocab = model.vocab()});
    EvalBatches batches(file, {.seq_len = model.seq_len(),
                               .micro_batch = o.micro_batch,
                               .rank = model.engine().place().data,
                               .ranks = model.engine().mesh().data});
    double loss = 0;
    {
      EvalProgress progress(batches.micros(), job.first() && !o.quiet);
      loss = model.engine().evaluate(
          [&](int m) {
            progress.at(m);
            return batches.next(m);
          },
          int(batches.micros()));
    }
    if (job.first()) std::printf("loss %.9g nats a token, perplexity %.6g\n", loss, std::exp(loss));
    return 0;
  });
}

}  // namespace cleave

#include <cmath>
#include <cstdio>

#include "app/parse.h"
#include "app/pretrained.h"
#include "app/session.h"
#include "data/batch_loader.h"

namespace cleave {

int run_eval(const Arguments& arguments) {
  CLI::App app(
      "Mean loss of a checkpoint on data, in nats a token.\n"
      "Example: cleave eval runs/quickstart/checkpoints --data validation.txt",
      "eval");
  std::string dir, tag = "latest", data;
  int64_t micro = 8;
  RankOptions ranks;
  app.add_option("dir", dir, "folder of checkpoints")->required();
  app.add_option("--tag", tag, "which one")->capture_default_str();
  app.add_option("--data", data, "text or token file")->required();
  app.add_option("--micro_batch", micro, "samples at a time")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  add_options(app, ranks);
  if (!parse(app, arguments)) return 0;
  Session session(ranks);
  try {
    const TokenFile file(data);
    session.connect(std::chrono::seconds(600));
    Communicator& world = session.world();
    Pretrained model(dir, tag, micro, world, session.device());
    EvalBatches batches(
        file,
        {.seq_len = model.seq_len(), .micro_batch = micro, .rank = world.rank(), .ranks = world.size()});
    const double loss = model.engine().evaluate(
        [&](int m) {
          const TokenBatch b = batches.next(m);
          return Batch{.input = b.input, .targets = b.targets, .valid_targets = b.valid_targets};
        },
        int(batches.micros()));
    if (session.first()) std::printf("loss %.9g nats a token, perplexity %.6g\n", loss, std::exp(loss));
    session.leave();
  } catch (const std::exception& e) {
    session.failed(e.what());
    throw;
  }
  return 0;
}

}  // namespace cleave

#include <cmath>
#include <cstdio>

#include "app/parse.h"
#include "app/pretrained.h"
#include "app/raw_bytes.h"
#include "data/batch_loader.h"

namespace cleave {

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
      ->check(CLI::PositiveNumber);
  if (!parse(app, arguments)) return 0;
  Session session(o.ranks);
  return session.run([&] {
    TokenFile file(data);  // what is wrong with it is known before anything is started
    if (session.first()) warn_of_raw_bytes({data});
    Pretrained model(o, session);
    file = TokenFile(data, {.vocab = model.vocab()});
    const MeshShape& mesh = model.engine().mesh();
    EvalBatches batches(file, {.seq_len = model.seq_len(),
                               .micro_batch = o.micro_batch,
                               .rank = mesh.place(session.info().rank).data,
                               .ranks = mesh.data});
    const double loss = model.engine().evaluate(
        [&](int m) {
          const TokenBatch b = batches.next(m);
          return Batch{.input = b.input, .targets = b.targets, .valid_targets = b.valid_targets};
        },
        int(batches.micros()));
    if (session.first()) std::printf("loss %.9g nats a token, perplexity %.6g\n", loss, std::exp(loss));
    session.leave();
    return 0;
  });
}

}  // namespace cleave

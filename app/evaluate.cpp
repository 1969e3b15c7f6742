#include <cmath>
#include <cstdio>

#include "app/parse.h"
#include "app/pretrained.h"
#include "app/raw_bytes.h"
#include "app/work_progress.h"
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
  bool pack = false;
  add_options(app, o);
  app.add_option("--data", data, "text or token file")->required();
  app.add_flag("--pack", pack, "samples are packed documents, as cleave train --pack makes them");
  add_document_mask(app, o.document_mask);
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
                               .ranks = model.engine().mesh().data,
                               .pack = pack,
                               .document_mask = o.document_mask});
    double loss = 0;
    {
      WorkProgress progress("evaluated", "batches", job.first() && !o.quiet);
      loss = model.engine().evaluate(
          [&](int m) {
            progress.at(m, batches.micros());
            return batches.next(m);
          },
          int(batches.micros()));
    }
    if (job.first()) std::printf("loss %.9g nats a token, perplexity %.6g\n", loss, std::exp(loss));
    return 0;
  });
}

}  // namespace cleave

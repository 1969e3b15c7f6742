// A job of the C interface.
#pragma once
#include <memory>
#include <vector>

#include "launcher/job.h"

struct cleave_engine;

struct cleave_job {
  cleave::launcher::Job job;
  cleave::comm::Communicator* world = nullptr;  // null before connect
  int64_t timeout_s = 0;                        // deadline of its waits, once connected
  std::vector<std::weak_ptr<cleave_engine>> engines;

  explicit cleave_job(const cleave::launcher::JobOptions& options) : job(options) {}
  cleave::comm::Communicator& connected() const {
    CHECK(world, "the job is not connected: cleave_job_connect comes first");
    return *world;
  }
};

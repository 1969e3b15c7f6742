// The driver of a ParameterStore for a forward and backward that run elsewhere, in an order that nobody knows
// before. The first pass of a kind is served on demand and recorded; later ones follow the record, so that
// gathers run ahead of their use without a word between the ranks. A pass may leave the record at any time,
// and ranks may use different units in different orders, also none: a rank takes part in the collectives of
// units that it skips, with zeros where gradients are summed.
//
// What keeps ranks together: a collective is enqueued either because the record says so, which is the same on
// all ranks, or in a round, in which every rank says what it needs and all do all of it, in the order of
// units. A rank whose next need is not in the rest of the record enqueues that rest first; the others meet it
// in a round at the end of the pass at the latest, and record anew. A gradient that is complete is summed as
// the record says, else when the pass ends or a rank has no room for others. So a sum has the additions of a
// planned pass unless ranks gave the unit at different points of a pass, or one departed before it gave: then
// its parts are added up in turn.
#pragma once
#include <map>
#include <optional>
#include <vector>

#include "zero/gradient_user.h"
#include "zero/parameter_store.h"
#include "zero/range_allocator.h"
#include "zero/visits.h"

namespace cleave::zero {

struct RecordedOptions {
  // Elements of whole parameters, and of whole gradients, that there may be at a time. One unit fits always.
  int64_t gathered_numel = comm::Call::kWhole, bucket_numel = comm::Call::kWhole;
};

class RecordedVisits : public Visits {
 public:
  // The store outlives this; compute and comm are its streams, agreement goes over all data ranks.
  RecordedVisits(Memory& memory, ParameterStore& store, comm::Communicator& agreement,
                 const RecordedOptions& options, Stream& compute, Stream& comm);
  void commit() override;

  // A pass of a kind, a small number, has a record of its own. One that gives no gradients may stand alone.
  // end_pass is a collective, as are begin_step, finish_gradients, behind which no pass of this step gives
  // any, and end_step.
  void begin_step(double unscale = 1, GradientUser* user = nullptr) override;
  void begin_pass(int kind);
  void end_pass();
  void finish_gradients();
  void end_step() override;

  // The unit's parameters for work enqueued on compute until release, which follows each acquire.
  // Error(memory) where they do not fit beside those that are in use.
  std::vector<Tensor> acquire(int unit);
  void release(int unit);
  // Slots for the unit's gradients until give, for work enqueued on compute; any number of times a pass.
  std::vector<GradientSlot> gradients(int unit);
  void give(int unit);
  // The pass gives the unit no more, so its sum may be made when there is no room for others.
  void complete(int unit);

  // Gathers and rounds that were not in a record when they were needed, since set-up.
  int64_t unforeseen() const { return unforeseen_; }

 private:
  struct Whole {  // parameters
    bool gathers = false, there = false;
    bool fresh = false;  // not used since it was gathered
    int users = 0;
    int64_t used = 0;  // when, for choosing which leaves first
    Range range = {};
    Event ready = {};
  };
  struct Gradient {
    bool open = false;      // something was given that no sum has
    bool complete = false;  // and nothing more comes in this pass
    bool written = false;   // its slots are out
    bool summed = false;    // in this step, on all ranks
    GradientShards::WholeGradient whole = {};
    Range bucket = {}, apart = {};
  };
  // What is enqueued in a pass: a gather of unit u is u, the sum of its gradient is -1 - u.
  using Log = std::vector<int64_t>;
  static int64_t sum_of(int unit) { return -1 - int64_t(unit); }

  bool follow_to(int unit);
  void follow();  // enqueues the next entry of the record
  void run_ahead();
  void need(int unit);
  void fetch(int unit, bool needed);
  bool has_room(int64_t numel, bool evicts);
  int64_t round(int64_t message);
  void sum(int unit);
  void sum_pending(bool every_one);
  GradientShards::WholeGradient open(int unit);
  Tensor bucket_of(int unit, Range range) const;
  void record_anew();
  std::vector<int64_t> from_all(std::vector<int64_t> mine);
  [[noreturn]] void fail_for_room(int unit, bool gradient) const;

  Memory& memory_;
  ParameterStore& store_;
  comm::Communicator& agreement_;
  RecordedOptions options_;
  Stream& compute_;
  Stream& comm_;
  std::vector<Whole> wholes_;
  std::vector<Gradient> gradients_;
  Buffer gathered_, buckets_, apart_;
  Buffer said_;                                 // in rounds, by all ranks
  Range spare_whole_ = {}, spare_bucket_ = {};  // for units that others need and this rank has no memory for
  RangeAllocator whole_ranges_, bucket_ranges_, apart_ranges_;
  std::map<int, Log> records_;  // by kind of pass
  Log* record_ = nullptr;
  size_t next_ = 0;  // of the record
  Log used_;         // of this pass: what this rank needed, in that order
  bool departed_ = false;
  int64_t now_ = 0, unforeseen_ = 0;
  Event released_;  // compute is done with all that was released
  GradientUser* user_ = nullptr;
};

}  // namespace cleave::zero

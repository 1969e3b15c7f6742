// Driver of a ParameterStore for forward and backward passes that run elsewhere in an unknown order. The
// first pass of a kind is served on demand and recorded. Later ones follow the record, so gathers run ahead
// of their use without communication between the ranks. A pass may depart from the record at any time, and
// ranks may use different units in different orders, or none. A rank joins the collectives of units that it
// skips, with zeros for sums of gradients.
//
// Ranks stay synchronized as follows. A collective is enqueued either because the record says so, which is
// the same on all ranks, or in a round: every rank sends the unit that it needs, and all ranks process all of
// these units in unit order. A rank with a need outside the rest of the record first enqueues that rest; the
// others meet it in a round at the end of the pass or earlier, and a new record is made. A complete gradient
// is summed when the record says so, or else when the pass ends or a rank has no room for others. A sum
// therefore has the additions of a planned pass, unless ranks gave the unit at different points of a pass or
// one rank departed before it gave the unit. In that case its parts are added up one after another.
//
// A gradient that its ranks sum once per step (stages 0 and 1) is summed in the last pass of a step, when the
// record says so. If any rank adds to one afterwards, as in a second backward, all ranks reopen their sums,
// and later steps sum at their end.
//
// Rounds are messages between hosts, with their own order: the host waits for other ranks there, but never
// for the communication stream. If all units fit in the memory for whole parameters, each has a fixed place
// there, and a gathered unit stays until the weights change; the ranks then have the same units at any point
// of their collectives.
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
  // Maximum elements of whole parameters, and of whole gradients, at a time. One unit always fits.
  int64_t gathered_numel = comm::Call::kWhole, bucket_numel = comm::Call::kWhole;
  // Maximum elements that are gathered before their use; one unit always is, unless 0.
  int64_t prefetch_numel = 0;
};

class RecordedVisits : public Visits {
 public:
  // The store must outlive this object; compute and comm are its streams. `agreement` spans all data ranks
  // and is used for nothing else.
  RecordedVisits(Memory& memory, ParameterStore& store, comm::Communicator& agreement,
                 const RecordedOptions& options, Stream& compute, Stream& comm);
  void commit() override;

  // `kind` is a small number that selects the record of the pass. A pass without gradients may run outside a
  // step. Collective: begin_step, end_pass, finish_gradients, and end_step. No pass of this step may give
  // gradients after finish_gradients.
  void begin_step(double unscale = 1, GradientUser* user = nullptr) override;
  // `last`: sums of the step may begin in this pass; the same on all ranks.
  void begin_pass(int kind, bool last = false);
  // `fails`: the pass of this rank ends early. Returns false if it does so on any rank; then
  // discard_gradients must follow before other gradients.
  bool end_pass(bool fails = false);
  void finish_gradients();
  void end_step() override;
  // Forgets the gradients of this step so far. Call between passes, before finish_gradients.
  void discard_gradients();

  // Returns the unit's parameters for work enqueued on compute until release, which must follow each acquire.
  // Throws Error(memory) if they do not fit together with the units in use.
  std::vector<Tensor> acquire(int unit);
  void release(int unit);
  // Returns slots for the unit's gradients, for work enqueued on compute until give. Any number of times per
  // pass.
  std::vector<GradientSlot> gradients(int unit);
  void give(int unit);
  // Ends the unit's gradients in this pass, so its sum may run early to make room for others.
  void complete(int unit);

  // Number of gathers and rounds since set-up that no record predicted.
  int64_t unforeseen() const { return unforeseen_; }

 private:
  struct Whole {  // parameters
    bool gathers = false, there = false;
    bool fresh = false;  // not used since the gather, or in this pass
    bool kept = false;   // there since an earlier pass
    int users = 0;
    int uses = 0;      // in this pass
    int64_t used = 0;  // time of last use, to choose the unit to evict
    Range range = {};
    Event ready = {};
  };
  struct Gradient {
    bool open = false;      // holds gradients that are in no sum yet
    bool complete = false;  // and this pass adds no more
    bool written = false;   // its slots are in use
    bool summed = false;    // in this step, on all ranks
    bool finished = false;  // and no gradient followed
    bool ahead = false;     // not open, but its gradient of earlier passes is brought back to the bucket
    GradientShards::WholeGradient whole = {};
    Range bucket = {}, apart = {};
    Event back = {};
  };
  // Collectives of a pass, in order: u is a gather of unit u, -1 - u is the sum of its gradient.
  using Log = std::vector<int64_t>;
  static int64_t sum_of(int unit) { return -1 - int64_t(unit); }

  bool follow_to(int unit);
  void follow();  // enqueues the next entry of the record
  void catch_up(size_t end);
  void run_ahead();
  void need(int unit);
  void fetch(int unit, bool needed);
  bool alone(int unit) const;  // no other rank joins its gathers
  int64_t numel_ahead() const;
  enum class Evicts : uint8_t { none, used /* for the last time in this pass */, any /* not in use */ };
  bool has_room(int64_t numel, Evicts evicts);
  int64_t round(int64_t message);
  void sum(int unit);
  void finish(int unit);
  void reopen(int unit);
  void reopen_all();
  void sum_pending(bool every_one);
  GradientShards::WholeGradient open(int unit);
  void bring_back_ahead();
  void drop_ahead();
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
  Range spare_whole_ = {}, spare_bucket_ = {};  // for units needed only by other ranks
  RangeAllocator whole_ranges_, bucket_ranges_, apart_ranges_;
  bool keeps_ = false;   // all gathered units fit at the same time, each at a fixed address
  int64_t version_ = 0;  // of the weights that are there
  struct Draining {
    int unit;
    Range bucket;
    Event done;
  };
  std::vector<Draining> draining_;  // sums that were not done when their bucket was given back
  Stream on_host_;                  // inline, for rounds
  std::map<int, Log> records_;      // by kind of pass
  Log* record_ = nullptr;
  std::map<int, std::vector<int>> uses_;  // of each unit on this rank in the last pass, by kind of pass
  std::vector<int>* expected_ = nullptr;
  size_t next_ = 0;  // index into the record
  Log used_;         // units that this rank needed in this pass, in order
  bool departed_ = false, in_step_ = false;
  bool finishes_early_ = false;
  bool last_ = false, had_last_ = false;  // this pass, and one of this step, may begin sums of the step
  int64_t reopened_ = 0;                  // 1: in this step, by this rank, and after a round by any rank
  int64_t now_ = 0, unforeseen_ = 0;
  Event released_;  // compute has finished all released units
  GradientUser* user_ = nullptr;
};

}  // namespace cleave::zero

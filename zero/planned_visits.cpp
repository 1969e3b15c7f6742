#include "zero/planned_visits.h"

namespace cleave::zero {

PlannedVisits::PlannedVisits(Memory& memory, ParameterStore& store, Stream& compute, Stream& comm)
    : store_(store),
      pool_(memory, store.options(), store.weights(), compute),
      buckets_(memory, store.options(), store.gradients(), compute, comm) {}

int PlannedVisits::add_pass(std::vector<Visit> visits) {
  buckets_.add_pass(visits);
  return pool_.add_pass(std::move(visits));
}

void PlannedVisits::commit() {
  pool_.commit();
  store_.weights().commit();
  buckets_.commit();
}

void PlannedVisits::begin_step(double unscale, GradientUser* user) {
  store_.begin_step(unscale);
  buckets_.begin_step(user);
}

void PlannedVisits::begin_pass(int pass, bool last) {
  pool_.begin_pass(pass);
  buckets_.begin_pass(pass, last);
}

// Finishes the pool first: its next gathers wait for the visit, not for updates triggered by its gradients.
void PlannedVisits::finish(int visit) {
  pool_.finish();
  buckets_.finish(visit);
}

void PlannedVisits::end_step() {
  store_.wait_for_gradients();
  buckets_.end_step();
  store_.weights().end_step();
}

}  // namespace cleave::zero

#pragma once
// Conversion of values to parcels and back, with the references among them and the additions of CallHooks.

#include <string>
#include <tuple>

#include "trireme/base/error.h"
#include "trireme/rpc/agent_core.h"
#include "trireme/wire/fields.h"

namespace trireme::rpc {

/// Context for a Field<> that needs more than bytes: the writing or reading agent and its peer, on this
/// thread.
struct Exchange {
  AgentCore& core;
  WorkerId peer;
  std::vector<RefPass>* written;  ///< null while reading
  const Handles* read;            ///< null while writing
  std::size_t num_read = 0;

  Exchange(AgentCore& agent, WorkerId other, std::vector<RefPass>* to, const Handles* from);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  /// Throws InvalidArgument outside of calls.
  static Exchange& current();

 private:
  Exchange* const outer_;
};

/// `request`: the annex of the call that this answers; null for a call.
template <class... Values>
Parcel write_parcel(AgentCore& core, WorkerId to, const Annex* request, const Values&... values) {
  Parcel parcel;
  const Exchange exchange(core, to, &parcel.references, nullptr);
  CallHooks* const hooks = core.hooks();
  if (hooks != nullptr) hooks->begin_write();
  wire::FieldWriter writer(parcel.fields);
  (writer.write(values), ...);
  parcel.attachments = writer.attachments();
  if (hooks != nullptr) parcel.annex = hooks->end_write(to, request);
  return parcel;
}

/// Throws InvalidArgument: what() does not hold exactly one Value.
template <class Value, class What>
Value read_parcel(AgentCore& core, WorkerId from, const Parcel& parcel, const Handles& references,
                  const What& what) {
  Exchange exchange(core, from, nullptr, &references);
  CallHooks* const hooks = core.hooks();
  if (hooks != nullptr) hooks->begin_read();
  wire::FieldReader reader(parcel.fields, parcel.attachments);
  Value value{};
  reader.read(value);
  if (!reader.at_end() || exchange.num_read != references.size()) {
    throw InvalidArgument(
        text(what(), " from worker '", core.name_of(from),
             "' are not what this program's type says: both must be built from one source"));
  }
  if (hooks != nullptr) hooks->end_read(from, parcel.annex);
  return value;
}

}  // namespace trireme::rpc

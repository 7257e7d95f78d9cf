#pragma once
// A data set around another that tolerates faults of the storage. A read that failed for a transient reason
// is repeated, with a pause that doubles. A sample that stays unreadable ends the run, or another one
// replaces it, which is counted and logged once by name. Immutable but for its record of warnings;
// thread-safe.

#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/data/dataset.h"

namespace trireme::data {

/// A read that may succeed when it is repeated: a disk or a server that does not answer.
class ReadError : public DataError {
 public:
  using DataError::DataError;
};

struct ToleranceOptions {
  int retries = 3;  ///< of a read that throws ReadError
  double first_pause_s = 0.1;
  /// Of a sample that cannot be read, false: the run ends with the error. True: the next readable one in
  /// order replaces it. The replacement depends on the data alone.
  bool skip = false;
  Log log = Log();
};

/// Throws InvalidArgument: a negative number. Its samples throw DataError for a hundred in a row that cannot
/// be read.
std::shared_ptr<const Dataset> with_retries(std::shared_ptr<const Dataset> samples,
                                            const ToleranceOptions& options);

/// Both splits with data.retries and data.undecodable; samples that have no numbers are unchanged.
DataSource with_retries(DataSource source, const DataOptions& options, const Log& log);

}  // namespace trireme::data

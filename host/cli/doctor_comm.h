// atelier doctor --comm: how fast the processes of a run exchange tensors.
#pragma once

#include <string>

namespace atelier::cli {

// Called by every process of a run; rank 0 prints a table, or what `atelier plan train --network`
// reads. `backend`: that of --dist_backend; Gloo is measured with tensors in host memory. Returns
// the exit code. Throws Error{kInvalidArgument} in a process that is alone.
int doctor_comm(const std::string& backend, bool as_json);

}  // namespace atelier::cli

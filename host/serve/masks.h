// Masks of other programs, as ours: white where the picture is made anew.
#pragma once

#include "host/serve/jobs.h"

namespace atelier::serve {

// Takes a mask that is transparent where the picture is made anew; one without transparency is ours
// already. Throws HttpError 400 where it is no picture or a large one, as inverted_mask() does.
Upload mask_of_transparent(Upload mask);
// White for black.
Upload inverted_mask(const Upload& mask);

}  // namespace atelier::serve

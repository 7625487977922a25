"""AWS's protocols from the service's side: signatures, inputs and outputs by botocore's shapes, errors."""

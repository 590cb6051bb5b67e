"""Tables, prices and quotas, as Azure has them now."""
